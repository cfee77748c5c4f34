// Matrix products by matrix instructions: weights of f16 and bf16 times activations that are rounded
// to the same type, sums in f32.
//
// Both sides lie in tiles of 16 x 16 numbers, 512 bytes, in which a lane finds its part of the
// instruction's operand in one piece of 16 bytes: weights since the model was loaded, activations
// since `pack`, or where rows are few as they are read. Features are the rows of the instruction and
// rows its columns, so eight rows are the least that is worked on.
//
// The steps of `k`, 16 at a time, are cut into `SLICES` runs, as even as whole steps allow; an element
// is the sum, in order, of the chains of its slices. That is so in every kernel, whatever the rows
// around it.

#define SLICES 8
#define WARPS 8

// ---- tiles ----
//
// Lane `4 g + q` has the numbers of steps `4 q..4 q + 4` of `k`: of weights those of the features `g`
// and `g + 8` (first two steps of both, then the last two), of activations those of the row `g`, then
// of the row `g + 8`.

template <class T> DEVICE uint2 rounded(float4 v) {
    return make_uint2(pair(T{}, v.x, v.y), pair(T{}, v.z, v.w));
}

template <class T> DEVICE void multiply_tile(float (&c)[4], uint4 a, uint2 b) {
    u32 left[4] = {a.x, a.y, a.z, a.w};
    multiply(T{}, c, left, b.x, b.y);
}

// Steps `at..at + 4` of a row, zeros behind its end and where there is none.
DEVICE float4 steps_of(const float *row, u32 at, u32 k, bool is_wide) {
    float4 v = make_float4(0, 0, 0, 0);
    if (!row || at >= k) return v;
    if (is_wide) return *(const float4 *)(row + at);
    v.x = row[at];
    if (at + 1 < k) v.y = row[at + 1];
    if (at + 2 < k) v.z = row[at + 2];
    if (at + 3 < k) v.w = row[at + 3];
    return v;
}

// Row `i` of `m`, none behind them.
DEVICE const float *row_at(const float *a, const int *a_rows, u32 i, u32 m, u32 k) {
    if (i >= m) return 0;
    return a + (u64)(a_rows ? (u32)a_rows[i] : i) * k;
}

// Activations in tiles: those of 16 rows one behind another, by `k`. A warp makes one.
template <class T>
DEVICE void pack(const float *a, const int *a_rows, uint4 *tiles, u32 m, u32 k) {
    u32 steps = (k + 15) / 16, lane = threadIdx.x % 32;
    u32 tile = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    u32 first = tile / steps * 16 + lane / 4, at = tile % steps * 16 + lane % 4 * 4;
    if (first / 16 >= (m + 15) / 16) return;
    bool is_wide = k % 4 == 0 && is_aligned(a, 16);
    uint2 low = rounded<T>(steps_of(row_at(a, a_rows, first, m, k), at, k, is_wide));
    uint2 high = rounded<T>(steps_of(row_at(a, a_rows, first + 8, m, k), at, k, is_wide));
    tiles[(u64)tile * 32 + lane] = make_uint4(low.x, low.y, high.x, high.y);
}

// ---- elements ----

DEVICE float4 sum_of(float4 a, float4 b) {
    return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

// What follows a product, and where it goes.
struct End {
    float *out;
    const float *bias, *residual;
    u32 m, n, resume, act;
};

// Writes `rows` rows of `FEATURES` features: elements are sums of `PARTS` parts in shared memory, `size`
// apart, in which rows are `STRIDE` apart.
template <u32 FEATURES, u32 STRIDE, u32 PARTS>
DEVICE void finish(const float *parts, u32 size, u32 rows, u32 first_row, u32 first_feature,
                   const End &end) {
#pragma unroll 1
    for (u32 i = threadIdx.x; i < rows * (FEATURES / 4); i += 32 * WARPS) {
        u32 r = i / (FEATURES / 4), f = i % (FEATURES / 4) * 4;
        u32 row = first_row + r, at = first_feature + f;
        if (row >= end.m || at >= end.n) continue;
        float4 v = make_float4(0, 0, 0, 0);
#pragma unroll
        for (u32 p = 0; p < PARTS; p++)
            v = sum_of(v, *(const float4 *)&parts[p * size + r * STRIDE + f]);
        float *line = end.out + (u64)row * end.n;
        if (end.resume) v = sum_of(load4_tail(line, at, end.n, 0), v);
        if (end.bias) v = sum_of(v, load4_tail(end.bias, at, end.n, 0));
        if (end.act) {
            v.x = activate(end.act, v.x);
            v.y = activate(end.act, v.y);
            v.z = activate(end.act, v.z);
            v.w = activate(end.act, v.w);
        }
        if (end.residual)
            v = sum_of(v, load4_tail(end.residual + (u64)row * end.n, at, end.n, 0));
        store4_tail(line, at, end.n, v);
    }
}

// ---- few rows ----
//
// A block has 16 `TILES` features and 8 `GROUPS` rows, and each of its warps one slice of `k`: the time
// is that of reading the weights, which go from memory to registers, `AHEAD` steps and as many more on
// their way.

// Activations as they are.
template <class T, u32 GROUPS> struct Plain {
    static const u32 ROWS = 8 * GROUPS;
    struct Part {
        float4 of[GROUPS];
    };
    const float *rows[GROUPS];
    u32 k;
    bool is_wide;

    __device__ __forceinline__ Plain(const void *a, const int *a_rows, u32 m, u32 k) : k(k) {
        is_wide = k % 4 == 0 && is_aligned(a, 16);
        for (u32 i = 0; i < GROUPS; i++) {
            u32 row = blockIdx.y * ROWS + 8 * i + threadIdx.x % 32 / 4;
            rows[i] = row_at((const float *)a, a_rows, row, m, k);
        }
    }
    __device__ __forceinline__ void fetch(Part &part, u32 step) const {
        for (u32 i = 0; i < GROUPS; i++)
            part.of[i] = steps_of(rows[i], step * 16 + threadIdx.x % 4 * 4, k, is_wide);
    }
    static __device__ __forceinline__ uint2 operand(const Part &part, u32 i) {
        return rounded<T>(part.of[i]);
    }
};

// Activations in tiles.
template <class T, u32 GROUPS> struct Packed {
    static const u32 ROWS = 8 * GROUPS;
    struct Part {
        uint4 of[GROUPS / 2];
    };
    const uint4 *tiles;
    u32 steps, first, num;

    __device__ __forceinline__ Packed(const void *a, const int *, u32 m, u32 k)
        : tiles((const uint4 *)a), steps((k + 15) / 16), first(blockIdx.y * (GROUPS / 2)),
          num((m + 15) / 16) {}
    __device__ __forceinline__ void fetch(Part &part, u32 step) const {
#pragma unroll
        for (u32 i = 0; i < GROUPS / 2; i++) {
            u64 tile = (u64)(first + i) * steps + step;
            part.of[i] = first + i < num ? tiles[tile * 32 + threadIdx.x % 32] : make_uint4(0, 0, 0, 0);
        }
    }
    static __device__ __forceinline__ uint2 operand(const Part &part, u32 i) {
        uint4 both = part.of[i / 2];
        return i % 2 ? make_uint2(both.z, both.w) : make_uint2(both.x, both.y);
    }
};

template <class T, u32 TILES, u32 GROUPS, u32 AHEAD, class Left>
DEVICE void few(const void *a, const int *a_rows, const uint4 *weights, u32 k, const End &end) {
    const u32 FEATURES = 16 * TILES, STRIDE = FEATURES + 4;
    // Rows whose sums are in shared memory at once.
    const u32 TOGETHER = GROUPS * TILES <= 8 ? GROUPS : 8 / TILES;
    __shared__ __align__(16) float parts[SLICES][8 * TOGETHER][STRIDE];
    struct Part {
        uint4 right[TILES];
        typename Left::Part left;
    };
    Left left(a, a_rows, end.m, k);
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, q = lane % 4, g = lane / 4;
    u32 steps = (k + 15) / 16, tiles = (end.n + 15) / 16;
    u32 each = (steps + SLICES - 1) / SLICES, first = warp * each;
    u32 last = first + each < steps ? first + each : steps;

    float sum[TILES][GROUPS][4] = {};
    auto fetch = [&](Part(&to)[AHEAD], u32 at) {
#pragma unroll
        for (u32 i = 0; i < AHEAD; i++) {
            if (at + i >= last) continue;
#pragma unroll
            for (u32 t = 0; t < TILES; t++) {
                u32 tile = blockIdx.x * TILES + t;
                u64 place = ((u64)tile * steps + at + i) * 32 + lane;
                to[i].right[t] = tile < tiles ? weights[place] : make_uint4(0, 0, 0, 0);
            }
            left.fetch(to[i].left, at + i);
        }
    };
    auto use = [&](const Part(&from)[AHEAD], u32 at) {
#pragma unroll
        for (u32 i = 0; i < AHEAD; i++) {
            if (at + i >= last) continue;
#pragma unroll
            for (u32 r = 0; r < GROUPS; r++) {
                uint2 b = Left::operand(from[i].left, r);
#pragma unroll
                for (u32 t = 0; t < TILES; t++) multiply_tile<T>(sum[t][r], from[i].right[t], b);
            }
        }
    };
    Part one[AHEAD], two[AHEAD];
    fetch(one, first);
#pragma unroll 1
    for (u32 at = first; at < last; at += 2 * AHEAD) {
        fetch(two, at + AHEAD);
        use(one, at);
        fetch(one, at + 2 * AHEAD);
        use(two, at + AHEAD);
    }

#pragma unroll
    for (u32 from = 0; from < GROUPS; from += TOGETHER) {
        if (from) __syncthreads();
#pragma unroll
        for (u32 r = 0; r < TOGETHER; r++) {
#pragma unroll
            for (u32 t = 0; t < TILES; t++) {
#pragma unroll
                for (u32 i = 0; i < 4; i++)
                    parts[warp][8 * r + 2 * q + i % 2][16 * t + g + i / 2 * 8] = sum[t][from + r][i];
            }
        }
        __syncthreads();
        u32 row = (blockIdx.y * GROUPS + from) * 8;
        finish<FEATURES, STRIDE, SLICES>(&parts[0][0][0], 8 * TOGETHER * STRIDE, 8 * TOGETHER, row,
                                         blockIdx.x * FEATURES, end);
    }
}

// ---- many rows ----
//
// A block has 16 `TILES` features and 16 `BELOW` rows, `ACROSS` warps beside one another; tiles of both
// sides come into shared memory, `DEPTH` steps of a slice at once, some ahead.

// Where in `k` something is: a step, and the end of its slice.
struct Place {
    u32 step, end, each, steps;

    __device__ __forceinline__ Place(u32 each, u32 steps)
        : step(0), end(min(each, steps)), each(each), steps(steps) {}
    // Goes on by so many steps of the slice; answers whether that was its end.
    __device__ __forceinline__ bool advance(u32 by) {
        step += by;
        if (step < end) return false;
        step = end;
        end = min(end + each, steps);
        return true;
    }
};

template <class T, u32 TILES, u32 BELOW, u32 ACROSS, u32 DEPTH, u32 STAGES>
DEVICE void many(const uint4 *a, const uint4 *weights, u32 k, const End &end) {
    const u32 FEATURES = 16 * TILES, STRIDE = FEATURES + 4;
    const u32 OWN = TILES / ACROSS, OWN_ROWS = BELOW / (WARPS / ACROSS);
    const u32 PIECES = (TILES + BELOW) * DEPTH, COPIED = PIECES / WARPS;
    static_assert(PIECES % WARPS == 0 && WARPS % DEPTH == 0, "a warp copies tiles of one step");
    extern __shared__ __align__(16) uint4 room[];
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, q = lane % 4, g = lane / 4;
    u32 steps = (k + 15) / 16, each = (steps + SLICES - 1) / SLICES;
    u32 tiles = (end.n + 15) / 16, rows = (end.m + 15) / 16;
    u32 first = warp % ACROSS * OWN, first_row = warp / ACROSS * OWN_ROWS;
    bool is_idle = blockIdx.y * BELOW + first_row >= rows;

    // What this thread copies of each stage: of some tiles, the step `warp % DEPTH`.
    const uint4 *from[COPIED];
    bool has[COPIED];
#pragma unroll
    for (u32 i = 0; i < COPIED; i++) {
        u32 which = (warp + i * WARPS) / DEPTH;
        bool is_right = which < TILES;
        u32 tile = is_right ? blockIdx.x * TILES + which : blockIdx.y * BELOW + which - TILES;
        u64 at = ((u64)tile * steps + warp % DEPTH) * 32 + lane;
        has[i] = tile < (is_right ? tiles : rows);
        from[i] = is_right ? weights : a;
        if (has[i]) from[i] += at;
    }
    auto load = [&](uint4 *stage, const Place &at) {
        bool is_there = at.step + warp % DEPTH < at.end;
#pragma unroll
        for (u32 i = 0; i < COPIED; i++) {
            bool is_copied = is_there && has[i];
            const uint4 *source = is_copied ? from[i] + at.step * 32 : from[i];
            copy_async_or_zero(stage + (warp + i * WARPS) * 32 + lane, source, is_copied);
        }
    };

    float sum[OWN][2 * OWN_ROWS][4] = {}, total[OWN][2 * OWN_ROWS][4] = {};
    auto use = [&](const uint4 *stage, u32 d) {
        uint4 right[OWN];
#pragma unroll
        for (u32 i = 0; i < OWN; i++) right[i] = stage[((first + i) * DEPTH + d) * 32];
#pragma unroll
        for (u32 r = 0; r < OWN_ROWS; r++) {
            uint4 left = stage[((TILES + first_row + r) * DEPTH + d) * 32];
#pragma unroll
            for (u32 i = 0; i < OWN; i++) {
                multiply_tile<T>(sum[i][2 * r], right[i], make_uint2(left.x, left.y));
                multiply_tile<T>(sum[i][2 * r + 1], right[i], make_uint2(left.z, left.w));
            }
        }
    };
    Place loaded(each, steps), at(each, steps);
#pragma unroll 1
    for (u32 t = 0; t < STAGES - 1; t++) {
        if (loaded.step < steps) load(room + t * PIECES * 32, loaded);
        loaded.advance(DEPTH);
        commit_copies();
    }
#pragma unroll 1
    for (u32 t = 0; at.step < steps; t++) {
        wait_copies<STAGES - 2>();
        __syncthreads();
        if (loaded.step < steps) load(room + (t + STAGES - 1) % STAGES * PIECES * 32, loaded);
        loaded.advance(DEPTH);
        commit_copies();
        const uint4 *stage = room + t % STAGES * PIECES * 32 + lane;
        u32 num = is_idle ? 0 : min(DEPTH, at.end - at.step);
        if (num == DEPTH) {
#pragma unroll
            for (u32 d = 0; d < DEPTH; d++) use(stage, d);
        } else {
#pragma unroll 1
            for (u32 d = 0; d < num; d++) use(stage, d);
        }
        if (!at.advance(DEPTH)) continue;
#pragma unroll
        for (u32 i = 0; i < OWN; i++) {
#pragma unroll
            for (u32 r = 0; r < 2 * OWN_ROWS; r++) {
#pragma unroll
                for (u32 e = 0; e < 4; e++) {
                    total[i][r][e] += sum[i][r][e];
                    sum[i][r][e] = 0;
                }
            }
        }
    }

    wait_copies<0>();
    __syncthreads();
    float *parts = (float *)room;
#pragma unroll
    for (u32 r = 0; r < 2 * OWN_ROWS; r++) {
#pragma unroll
        for (u32 t = 0; t < OWN; t++) {
#pragma unroll
            for (u32 i = 0; i < 4; i++) {
                u32 row = 16 * first_row + 8 * r + 2 * q + i % 2;
                parts[row * STRIDE + 16 * (first + t) + g + i / 2 * 8] = total[t][r][i];
            }
        }
    }
    __syncthreads();
    finish<FEATURES, STRIDE, 1>(parts, 0, 16 * BELOW, blockIdx.y * BELOW * 16,
                                blockIdx.x * FEATURES, end);
}

// ---- kernels ----

#define ENTRY(NAME) extern "C" __global__ void __launch_bounds__(32 * WARPS) NAME

#define FEW(NAME, T, TILES, GROUPS, AHEAD, LEFT)                                                   \
    ENTRY(NAME)(const void *a, const int *a_rows, const uint4 *weights, u32 k, End end) {          \
        few<T, TILES, GROUPS, AHEAD, LEFT<T, GROUPS>>(a, a_rows, weights, k, end);                 \
    }

#define MANY(NAME, T, TILES, BELOW, ACROSS, DEPTH, STAGES)                                         \
    ENTRY(NAME)(const uint4 *a, const int *, const uint4 *weights, u32 k, End end) {               \
        many<T, TILES, BELOW, ACROSS, DEPTH, STAGES>(a, weights, k, end);                          \
    }

// Features and rows of a block are in the name. The launcher knows them, and what of `k` is in shared
// memory.
#define MATRICES(SUFFIX, T)                                                                        \
    KERNEL matrix_pack_##SUFFIX(const float *a, const int *a_rows, uint4 *tiles, u32 m, u32 k) {   \
        pack<T>(a, a_rows, tiles, m, k);                                                           \
    }                                                                                              \
    FEW(matrix_plain_16x8_##SUFFIX, T, 1, 1, 4, Plain)                                             \
    FEW(matrix_plain_32x8_##SUFFIX, T, 2, 1, 4, Plain)                                             \
    FEW(matrix_few_32x16_##SUFFIX, T, 2, 2, 4, Packed)                                             \
    FEW(matrix_few_32x32_##SUFFIX, T, 2, 4, 2, Packed)                                             \
    FEW(matrix_few_64x32_##SUFFIX, T, 4, 4, 1, Packed)                                             \
    MANY(matrix_many_64x128_##SUFFIX, T, 4, 8, 2, 8, 2)                                            \
    MANY(matrix_many_128x64_##SUFFIX, T, 8, 4, 4, 8, 2)

MATRICES(f16, f16)
MATRICES(bf16, bf16)
