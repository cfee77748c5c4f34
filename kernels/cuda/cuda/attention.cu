// Attention of packed rows. A block has some queries of one head of one member, and goes over the
// member's keys in tiles of 32, from the first on or from the first that any of them sees; a query's
// sums see the tiles in that order whatever the other queries are. A query sees the keys up to `before`
// positions before its own and `after` behind it. A tile in which it sees none changes nothing.

#define KEYS 32
#define WARPS 4

// `DIM` is the most features of a head, `QUERIES` how many queries a warp has. With `TERMS`
// scores stay below `cap`, unless it is 0, and a head with a `bias` adds it by the distance of a score's
// key, of which 0 stands in the middle of `columns`.
template <u32 DIM, u32 QUERIES, bool TERMS>
DEVICE void attention(const float *q, const float *k, const float *v, float *out,
                      const Member *members, u32 heads, u32 kv_heads, u32 dim, float scale,
                      u32 before, u32 after, float cap, const float *bias, u32 columns) {
    const u32 ROWS = WARPS * QUERIES, STRIDE = DIM + 4, PARTS = DIM / 32;
    __shared__ __align__(16) float queries[ROWS][DIM];
    // Keys, then the values of the same rows.
    __shared__ __align__(16) float tile[KEYS][STRIDE];
    __shared__ __align__(16) float weights[ROWS][KEYS];

    Member m = members[blockIdx.z];
    u32 first = blockIdx.x * ROWS;
    if (first >= m.rows) return;
    u32 head = blockIdx.y, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    u32 q_width = heads * dim, kv_width = kv_heads * dim;
    u64 q_at = (u64)m.start * q_width + head * dim;
    u64 kv_at = (u64)m.start * kv_width + head / (heads / kv_heads) * dim;
    u32 rounded = (dim + 3) / 4 * 4;

    for (u32 row = warp; row < ROWS; row += WARPS) {
        const float *line = q + q_at + (u64)(first + row) * q_width;
        for (u32 at = lane; at < rounded; at += 32)
            queries[row][at] = first + row < m.own && at < dim ? line[at] : 0.0f;
    }
    auto load = [&](const float *from, u32 key0) {
        for (u32 row = warp; row < KEYS; row += WARPS) {
            const float *line = from + kv_at + (u64)(key0 + row) * kv_width;
            for (u32 at = lane; at < rounded; at += 32)
                tile[row][at] = key0 + row < m.own && at < dim ? line[at] : 0.0f;
        }
    };

    float top[QUERIES], total[QUERIES], sum[QUERIES][PARTS];
#pragma unroll
    for (u32 i = 0; i < QUERIES; i++) {
        top[i] = NEG_INF;
        total[i] = 0;
#pragma unroll
        for (u32 p = 0; p < PARTS; p++) sum[i][p] = 0;
    }

    // No query of this block sees a key behind these, or before the first tile.
    u32 last = first + ROWS < m.own ? first + ROWS : m.own;
    u32 seen = last + after < m.own ? last + after : m.own;
    if (first >= m.own) seen = 0;
    u32 start = first > before ? (first - before) / KEYS * KEYS : 0;
    bias += TERMS ? (u64)head * columns + columns / 2 : 0;
    for (u32 key0 = start; key0 < seen; key0 += KEYS) {
        __syncthreads();
        load(k, key0);
        __syncthreads();
        float score[QUERIES];
#pragma unroll
        for (u32 i = 0; i < QUERIES; i++) score[i] = 0;
        for (u32 at = 0; at < rounded; at += 4) {
            float4 key = *(const float4 *)&tile[lane][at];
#pragma unroll
            for (u32 i = 0; i < QUERIES; i++) {
                float4 query = *(const float4 *)&queries[warp * QUERIES + i][at];
                score[i] = fmaf(query.x, key.x, score[i]);
                score[i] = fmaf(query.y, key.y, score[i]);
                score[i] = fmaf(query.z, key.z, score[i]);
                score[i] = fmaf(query.w, key.w, score[i]);
            }
        }
        __syncthreads();
        load(v, key0);
#pragma unroll
        for (u32 i = 0; i < QUERIES; i++) {
            u32 row = first + warp * QUERIES + i, key = key0 + lane;
            // Keys before the first that is seen wrap around to the largest numbers.
            bool sees = key < m.own && key + before - row <= before + after;
            float s = sees ? score[i] * scale : NEG_INF;
            if (TERMS) {
                sees = sees && row < m.own;
                if (cap != 0) s = cap * tanh_of(s / cap);
                if (sees && columns) s += bias[(int)(key - row)];
                sees = sees && s != NEG_INF;
                s = sees ? s : NEG_INF;
            }
            float highest = larger(warp_max(s), top[i]);
            // Weights so far are relative to the old maximum; a tile without keys changes nothing.
            float shrink = highest == top[i] ? 1.0f : exp_of(top[i] - highest);
            float weight = sees ? exp_of(s - highest) : 0.0f;
            total[i] = total[i] * shrink + warp_sum(weight);
            top[i] = highest;
            weights[warp * QUERIES + i][lane] = weight;
#pragma unroll
            for (u32 p = 0; p < PARTS; p++) sum[i][p] *= shrink;
        }
        __syncthreads();
        for (u32 key = 0; key < KEYS; key += 4) {
            float4 w[QUERIES];
#pragma unroll
            for (u32 i = 0; i < QUERIES; i++)
                w[i] = *(const float4 *)&weights[warp * QUERIES + i][key];
#pragma unroll
            for (u32 p = 0; p < PARTS; p++) {
                u32 at = 32 * p + lane;
                if (at >= rounded) continue;
                float a = tile[key][at], b = tile[key + 1][at], c = tile[key + 2][at],
                      d = tile[key + 3][at];
#pragma unroll
                for (u32 i = 0; i < QUERIES; i++) {
                    sum[i][p] = fmaf(w[i].x, a, sum[i][p]);
                    sum[i][p] = fmaf(w[i].y, b, sum[i][p]);
                    sum[i][p] = fmaf(w[i].z, c, sum[i][p]);
                    sum[i][p] = fmaf(w[i].w, d, sum[i][p]);
                }
            }
        }
    }

#pragma unroll
    for (u32 i = 0; i < QUERIES; i++) {
        u32 row = first + warp * QUERIES + i;
        if (row >= m.rows) continue;
#pragma unroll
        for (u32 p = 0; p < PARTS; p++) {
            u32 at = 32 * p + lane;
            if (at < dim)
                out[q_at + (u64)row * q_width + at] = row < m.own ? sum[i][p] / total[i] : 0.0f;
        }
    }
}

#define INSTANCE(NAME, DIM, QUERIES, TERMS)                                                        \
    extern "C" __global__ void __launch_bounds__(32 * WARPS, 1)                                    \
        NAME##_##DIM(const float *q, const float *k, const float *v, float *out,                   \
                     const Member *members, u32 heads, u32 kv_heads, u32 dim, float scale,         \
                     u32 before, u32 after, float cap, const float *bias, u32 columns) {           \
        attention<DIM, QUERIES, TERMS>(q, k, v, out, members, heads, kv_heads, dim, scale,         \
                                       before, after, cap, bias, columns);                         \
    }

INSTANCE(attention, 32, 4, false)
INSTANCE(attention, 64, 4, false)
INSTANCE(attention, 128, 4, false)
INSTANCE(attention, 256, 2, false)
INSTANCE(attention_terms, 32, 4, true)
INSTANCE(attention_terms, 64, 4, true)
INSTANCE(attention_terms, 128, 4, true)
INSTANCE(attention_terms, 256, 2, true)
