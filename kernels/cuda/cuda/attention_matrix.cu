// Attention of packed rows by matrix instructions: queries, keys, values and the keys' shares are
// rounded to f16 or bf16, sums are f32. A warp has 16 queries of one head of one member and goes
// over the member's keys in tiles of 32, from the first on or from the first that any of the block's
// sees; a query's sums see the tiles in that order whatever the other queries are. What queries see, and
// what is added to scores, is as in attention.cu.

#define KEYS 32
#define WARPS 4
#define LOG2_E 1.44269504088896340736f

// 2^x as the hardware has it: shares are rounded to 11 bits at most.
DEVICE float power_of_two(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// `DIM` is the most features of a head.
template <class H, u32 DIM, bool TERMS>
DEVICE void attention(const float *q, const float *k, const float *v, float *out,
                      const Member *members, u32 heads, u32 kv_heads, u32 dim, float scale,
                      u32 before, u32 after, float cap, const float *bias, u32 columns) {
    const u32 ROWS = 16 * WARPS, STEPS = DIM / 16;
    // Two features an element. Rows stand apart by 16 bytes more, so that eight of them lie in
    // different banks.
    __shared__ __align__(16) u32 keys[KEYS][DIM / 2 + 4];
    __shared__ __align__(16) u32 values[KEYS][DIM / 2 + 4];

    Member m = members[blockIdx.z];
    u32 first = blockIdx.x * ROWS;
    if (first >= m.rows) return;
    u32 head = blockIdx.y, lane = threadIdx.x % 32, group = lane / 4, within = lane % 4;
    // The warp's first query.
    u32 base = first + threadIdx.x / 32 * 16;
    u32 q_width = heads * dim, kv_width = kv_heads * dim;
    u64 q_at = (u64)m.start * q_width + head * dim;
    u64 kv_at = (u64)m.start * kv_width + head / (heads / kv_heads) * dim;
    // A feature of a row and the next, or zeros.
    auto features = [&](const float *line, bool is_there, u32 at) {
        float low = is_there && at < dim ? line[at] : 0.0f;
        float high = is_there && at + 1 < dim ? line[at + 1] : 0.0f;
        return pair(H{}, low, high);
    };

    u32 query[STEPS][4];
#pragma unroll
    for (u32 s = 0; s < STEPS; s++) {
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            u32 row = base + group + i % 2 * 8, at = 16 * s + 2 * within + i / 2 * 8;
            query[s][i] = features(q + q_at + (u64)row * q_width, row < m.own, at);
        }
    }
    // A lane has two rows of each matrix of sums, and two columns next to each other.
    float top[2], total[2], sum[DIM / 8][4];
#pragma unroll
    for (u32 r = 0; r < 2; r++) {
        top[r] = NEG_INF;
        total[r] = 0;
    }
#pragma unroll
    for (u32 d = 0; d < DIM / 8; d++) {
#pragma unroll
        for (u32 i = 0; i < 4; i++) sum[d][i] = 0;
    }

    // No query of this block sees a key behind these, or before the first tile.
    u32 last = first + ROWS < m.own ? first + ROWS : m.own;
    u32 seen = last + after < m.own ? last + after : m.own;
    if (first >= m.own) seen = 0;
    u32 start = first > before ? (first - before) / KEYS * KEYS : 0;
    bias += TERMS ? (u64)head * columns + columns / 2 : 0;
    // What a thread puts into a tile of keys and one of values: four features at a time.
    const u32 PIECES = KEYS * DIM / 4 / (32 * WARPS);
    float4 next_keys[PIECES], next_values[PIECES];
    auto fetch = [&](u32 key0) {
#pragma unroll
        for (u32 i = 0; i < PIECES; i++) {
            u32 piece = threadIdx.x + i * 32 * WARPS;
            u32 key = key0 + piece / (DIM / 4), at = piece % (DIM / 4) * 4;
            u64 from = kv_at + (u64)key * kv_width;
            bool is_there = key < m.own;
            next_keys[i] = next_values[i] = make_float4(0, 0, 0, 0);
            if (is_there) next_keys[i] = load4_tail(k + from, at, dim, 0);
            if (is_there) next_values[i] = load4_tail(v + from, at, dim, 0);
        }
    };
    auto store = [&](u32 *to, float4 v) {
        *(uint2 *)to = make_uint2(pair(H{}, v.x, v.y), pair(H{}, v.z, v.w));
    };
    // The next tile is on its way while one is worked on, where there are registers for that.
    const bool IS_AHEAD = DIM < 128;
    if (IS_AHEAD && start < seen) fetch(start);
#pragma unroll 1
    for (u32 key0 = start; key0 < seen; key0 += KEYS) {
        if (!IS_AHEAD) fetch(key0);
        __syncthreads();
#pragma unroll
        for (u32 i = 0; i < PIECES; i++) {
            u32 piece = threadIdx.x + i * 32 * WARPS;
            u32 row = piece / (DIM / 4), at = piece % (DIM / 4) * 2;
            store(&keys[row][at], next_keys[i]);
            store(&values[row][at], next_values[i]);
        }
        if (IS_AHEAD && key0 + KEYS < seen) fetch(key0 + KEYS);
        __syncthreads();
        // None of the warp's queries is there, or sees a key of this tile.
        if (base >= m.own || key0 > base + 15 + after || key0 + KEYS + before <= base) continue;

        float score[KEYS / 8][4];
#pragma unroll
        for (u32 j = 0; j < KEYS / 8; j++) {
#pragma unroll
            for (u32 i = 0; i < 4; i++) score[j][i] = 0;
        }
#pragma unroll
        for (u32 s = 0; s < STEPS; s++) {
            if (16 * s >= dim) continue;
#pragma unroll
            for (u32 j = 0; j < KEYS / 8; j++) {
                const u32 *from = &keys[8 * j + group][8 * s + within];
                multiply(H{}, score[j], query[s], from[0], from[4]);
            }
        }

        // Shares of two keys each, as the left side of the next products.
        u32 share[KEYS / 8][2];
#pragma unroll
        for (u32 r = 0; r < 2; r++) {
            u32 row = base + group + 8 * r;
            float highest = top[r];
#pragma unroll
            for (u32 j = 0; j < KEYS / 8; j++) {
#pragma unroll
                for (u32 e = 0; e < 2; e++) {
                    u32 key = key0 + 8 * j + 2 * within + e;
                    bool sees = key < m.own && key + before - row <= before + after;
                    float &s = score[j][2 * r + e];
                    s = sees ? s * scale : NEG_INF;
                    if (TERMS && sees && row < m.own) {
                        if (cap != 0) s = cap * tanh_of(s / cap);
                        if (columns) s += bias[(int)(key - row)];
                    }
                    // In units in which a share is a power of two.
                    s *= LOG2_E;
                    highest = larger(s, highest);
                }
            }
            highest = larger(__shfl_xor_sync(ALL_LANES, highest, 1), highest);
            highest = larger(__shfl_xor_sync(ALL_LANES, highest, 2), highest);
            // Shares so far are relative to the old maximum; a tile without keys changes nothing.
            float shrink = highest == top[r] ? 1.0f : power_of_two(top[r] - highest);
            // Shares are added up as they are multiplied: rounded.
            float added = 0;
#pragma unroll
            for (u32 j = 0; j < KEYS / 8; j++) {
                float s0 = score[j][2 * r], s1 = score[j][2 * r + 1];
                u32 both = pair(H{}, s0 == NEG_INF ? 0.0f : power_of_two(s0 - highest),
                                s1 == NEG_INF ? 0.0f : power_of_two(s1 - highest));
                added += widen(H{(u16)both});
                added += widen(H{(u16)(both >> 16)});
                share[j][r] = both;
            }
            added += __shfl_xor_sync(ALL_LANES, added, 1);
            added += __shfl_xor_sync(ALL_LANES, added, 2);
            total[r] = total[r] * shrink + added;
            top[r] = highest;
#pragma unroll
            for (u32 d = 0; d < DIM / 8; d++) {
                sum[d][2 * r] *= shrink;
                sum[d][2 * r + 1] *= shrink;
            }
        }
#pragma unroll
        for (u32 t = 0; t < KEYS / 16; t++) {
            u32 left[4] = {share[2 * t][0], share[2 * t][1], share[2 * t + 1][0],
                           share[2 * t + 1][1]};
#pragma unroll
            for (u32 d = 0; d < DIM / 8; d++) {
                if (8 * d >= dim) continue;
                u32 b0, b1;
                load_turned(&values[16 * t + lane % 16][4 * d], b0, b1);
                multiply(H{}, sum[d], left, b0, b1);
            }
        }
    }

#pragma unroll
    for (u32 i = 0; i < 4; i++) {
        u32 row = base + group + i / 2 * 8;
        if (row >= m.rows) continue;
#pragma unroll
        for (u32 d = 0; d < DIM / 8; d++) {
            u32 at = 8 * d + 2 * within + i % 2;
            if (at < dim)
                out[q_at + (u64)row * q_width + at] = row < m.own ? sum[d][i] / total[i / 2] : 0.0f;
        }
    }
}

#define INSTANCE(NAME, H, DIM, TERMS)                                                              \
    extern "C" __global__ void __launch_bounds__(32 * WARPS, 1)                                    \
        NAME##_##H##_##DIM(const float *q, const float *k, const float *v, float *out,             \
                           const Member *members, u32 heads, u32 kv_heads, u32 dim, float scale,   \
                           u32 before, u32 after, float cap, const float *bias, u32 columns) {     \
        attention<H, DIM, TERMS>(q, k, v, out, members, heads, kv_heads, dim, scale, before,       \
                                 after, cap, bias, columns);                                       \
    }

INSTANCE(attention_matrix, bf16, 32, false)
INSTANCE(attention_matrix, bf16, 64, false)
INSTANCE(attention_matrix, bf16, 128, false)
INSTANCE(attention_matrix, f16, 32, false)
INSTANCE(attention_matrix, f16, 64, false)
INSTANCE(attention_matrix, f16, 128, false)
INSTANCE(attention_matrix_terms, bf16, 32, true)
INSTANCE(attention_matrix_terms, bf16, 64, true)
INSTANCE(attention_matrix_terms, bf16, 128, true)
INSTANCE(attention_matrix_terms, f16, 32, true)
INSTANCE(attention_matrix_terms, f16, 64, true)
INSTANCE(attention_matrix_terms, f16, 128, true)
