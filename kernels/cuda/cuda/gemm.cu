// Matrix products in tiles. Tiles of both sides come into shared memory some steps ahead; every
// output element is one chain of fused multiply-adds in order of `k` in one thread's register.

// Starts a copy of 16 bytes into shared memory behind the thread's back.
DEVICE void copy_async(void *to, const void *from) {
    u32 at = (u32)__cvta_generic_to_shared(to);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at), "l"(from) : "memory");
}
// Ends a group of such copies.
DEVICE void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until all but the last `N` groups are there.
template <u32 N> DEVICE void wait_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

DEVICE float part(float4 v, u32 i) { return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w; }

// `ROWS x COLUMNS` outputs of a block, `TM x TN` of a thread; `DEPTH` steps of `k` in a tile,
// `STAGES` tiles in shared memory, rows of the right one `PAD` elements apart. `T` is the stored type
// of the right side.
template <class T, u32 ROWS, u32 COLUMNS, u32 DEPTH, u32 TM, u32 TN, u32 STAGES, u32 PAD = 0>
struct Tiles {
    static const u32 THREADS = ROWS / TM * (COLUMNS / TN);
    // Rows of the left tile stand apart by four banks.
    static const u32 A_STRIDE = DEPTH + 4;
    static const u32 A_PIECES = ROWS * DEPTH / 4;
    // Elements of the right side in a piece of 16 bytes.
    static const u32 PIECE = 16 / sizeof(T);
    static const u32 B_PIECES = DEPTH * COLUMNS / PIECE;
    // Columns of a thread come in runs of four, `COLUMNS / (TN / 4)` apart.
    static const u32 RUN = TN < 4 ? TN : 4;
    // Rounds of four steps of `k` that are written out: more make the code large, not fast.
    static const u32 UNROLL = TM * TN >= 64 ? 1 : 4;

    struct Stage {
        float a[ROWS][A_STRIDE];
        T b[DEPTH][COLUMNS + PAD];
    };

    static __device__ __forceinline__ void load(Stage &s, const float *a, const int *a_rows,
                                                const T *b, u32 m, u32 k, u32 n, u32 k0,
                                                bool wide_a, bool wide_b) {
        for (u32 i = threadIdx.x; i < A_PIECES; i += THREADS) {
            u32 r = i / (DEPTH / 4), at = i % (DEPTH / 4) * 4;
            u32 row = blockIdx.y * ROWS + r, from = k0 + at;
            float *to = &s.a[r][at];
            if (row >= m || from >= k) {
                *(float4 *)to = make_float4(0, 0, 0, 0);
                continue;
            }
            const float *line = a + (u64)(a_rows ? (u32)a_rows[row] : row) * k;
            if (wide_a) {
                copy_async(to, line + from);
            } else {
#pragma unroll 1
                for (u32 j = 0; j < 4; j++) to[j] = from + j < k ? line[from + j] : 0.0f;
            }
        }
        for (u32 i = threadIdx.x; i < B_PIECES; i += THREADS) {
            u32 r = i / (COLUMNS / PIECE), at = i % (COLUMNS / PIECE) * PIECE;
            u32 row = k0 + r, from = blockIdx.x * COLUMNS + at;
            T *to = &s.b[r][at];
            if (row >= k || from >= n) {
                *(uint4 *)to = make_uint4(0, 0, 0, 0);
                continue;
            }
            const T *line = b + (u64)row * n;
            if (wide_b) {
                copy_async(to, line + from);
            } else {
#pragma unroll 1
                for (u32 j = 0; j < PIECE; j++) to[j] = from + j < n ? line[from + j] : T{};
            }
        }
    }

    static __device__ __forceinline__ void run(const float *a, const int *a_rows, const T *b,
                                               const float *scales, float *out, u32 m, u32 k, u32 n,
                                               u32 resume, const float *bias, u32 act,
                                               const float *residual) {
        __shared__ __align__(16) Stage stages[STAGES];
        // Whole pieces of 16 bytes alone are copied behind the threads' backs.
        bool wide_a = k % 4 == 0 && is_aligned(a, 16);
        bool wide_b = n % PIECE == 0 && is_aligned(b, 16);
        u32 tx = threadIdx.x % (COLUMNS / TN), ty = threadIdx.x / (COLUMNS / TN);
        u32 first_row = blockIdx.y * ROWS + ty * TM;
        auto column = [&](u32 j) { return j / RUN * (COLUMNS / (TN / RUN)) + tx * RUN + j % RUN; };

        float sum[TM][TN];
        for (u32 i = 0; i < TM; i++) {
            for (u32 j = 0; j < TN; j++) {
                u32 row = first_row + i, col = blockIdx.x * COLUMNS + column(j);
                bool goes_on = resume && !scales && row < m && col < n;
                sum[i][j] = goes_on ? out[(u64)row * n + col] : 0.0f;
            }
        }

        u32 tiles = (k + DEPTH - 1) / DEPTH;
#pragma unroll 1
        for (u32 t = 0; t < STAGES - 1; t++) {
            if (t < tiles) load(stages[t], a, a_rows, b, m, k, n, t * DEPTH, wide_a, wide_b);
            commit_copies();
        }
#pragma unroll 1
        for (u32 t = 0; t < tiles; t++) {
            wait_copies<STAGES - 2>();
            __syncthreads();
            u32 next = t + STAGES - 1;
            if (next < tiles)
                load(stages[next % STAGES], a, a_rows, b, m, k, n, next * DEPTH, wide_a, wide_b);
            commit_copies();
            if (first_row >= m) continue;
            const Stage &s = stages[t % STAGES];
#pragma unroll UNROLL
            for (u32 k0 = 0; k0 < DEPTH; k0 += 4) {
                float4 left[TM];
#pragma unroll
                for (u32 i = 0; i < TM; i++) left[i] = *(const float4 *)&s.a[ty * TM + i][k0];
#pragma unroll
                for (u32 kk = 0; kk < 4; kk++) {
                    float right[TN];
#pragma unroll
                    for (u32 j = 0; j < TN; j += RUN) {
                        const T *from = &s.b[k0 + kk][column(j)];
                        if (RUN == 4) {
                            float4 v = load4(from);
                            right[j] = v.x;
                            right[(j + 1) % TN] = v.y;
                            right[(j + 2) % TN] = v.z;
                            right[(j + 3) % TN] = v.w;
                        } else {
                            for (u32 l = 0; l < RUN; l++) right[j + l] = widen(from[l]);
                        }
                    }
#pragma unroll
                    for (u32 i = 0; i < TM; i++) {
#pragma unroll
                        for (u32 j = 0; j < TN; j++)
                            sum[i][j] = fmaf(part(left[i], kk), right[j], sum[i][j]);
                    }
                }
            }
        }

        // One row at a time, each moved to the first: the code of activations is long.
#pragma unroll 1
        for (u32 row = first_row; row < first_row + TM && row < m; row++) {
#pragma unroll
            for (u32 j = 0; j < TN; j++) {
                u32 col = blockIdx.x * COLUMNS + column(j);
                if (col >= n) continue;
                u64 at = (u64)row * n + col;
                float v = sum[0][j];
                if (scales) v *= scales[col];
                if (bias) v += bias[col];
                if (scales && resume) v += out[at];
                v = activate(act, v);
                if (residual) v += residual[at];
                out[at] = v;
            }
#pragma unroll
            for (u32 i = 1; i < TM; i++) {
#pragma unroll
                for (u32 j = 0; j < TN; j++) sum[i - 1][j] = sum[i][j];
            }
        }
    }
};

// Blocks of the large tiling that are to have room on a multiprocessor together: a second one wants
// 128 registers a thread, with which sums of f32 spill from sm_100 on.
#if __CUDA_ARCH__ < 1000
#define LARGE_BLOCKS 2
#else
#define LARGE_BLOCKS 1
#endif

// `BLOCKS` at least are to have room on a multiprocessor together.
#define INSTANCE(NAME, T, ROWS, COLUMNS, DEPTH, TM, TN, STAGES, BLOCKS)                            \
    extern "C" __global__ void __launch_bounds__(ROWS / TM * (COLUMNS / TN), BLOCKS)                \
        NAME(const float *a, const int *a_rows, const T *b, const float *scales, float *out,       \
             u32 m, u32 k, u32 n, u32 resume, const float *bias, u32 act,                          \
             const float *residual) {                                                              \
        Tiles<T, ROWS, COLUMNS, DEPTH, TM, TN, STAGES>::run(a, a_rows, b, scales, out, m, k, n,    \
                                                            resume, bias, act, residual);          \
    }

#define INSTANCES(SUFFIX, T)                                                                       \
    INSTANCE(gemm_few_##SUFFIX, T, 8, 16, 64, 1, 1, 6, 1)                                            \
    INSTANCE(gemm_small_##SUFFIX, T, 32, 64, 32, 4, 4, 3, 1)                                          \
    INSTANCE(gemm_large_##SUFFIX, T, 128, 128, 16, 8, 8, 2, LARGE_BLOCKS)


// ---- by matrix instructions ----
//
// Weights of f16 and bf16 times activations that are rounded to the same type, sums in f32. An
// element is a chain of instructions in order of `k`, 16 steps each, whatever the tile and the rows
// around it; rows that are not there are zeros.

// Four warps: as many as there are times 16 rows below one another, the others beside them. Where
// blocks are few the time is that of reading the weights: the more of them are on their way the
// better, so there are as many stages as two blocks have room for in 228 KiB. Where they are many,
// more blocks are to have room. Right rows stand apart by 16 bytes more, so that eight of them lie in
// different banks.
template <class T, u32 ROWS, u32 STAGES> struct Matrix {
    static const u32 COLUMNS = 32, DEPTH = 32, BELOW = ROWS / 16, OWN = COLUMNS / (4 / BELOW);
    typedef Tiles<T, ROWS, COLUMNS, DEPTH, ROWS / 16, 4, STAGES, 8> Of;
    static_assert(Of::THREADS == 128, "four warps");

    static __device__ __forceinline__ void run(const float *a, const int *a_rows, const T *b,
                                               float *out, u32 m, u32 k, u32 n, u32 resume,
                                               const float *bias, u32 act, const float *residual) {
        extern __shared__ __align__(16) u8 room[];
        typename Of::Stage *stages = (typename Of::Stage *)room;
        bool wide_a = k % 4 == 0 && is_aligned(a, 16);
        bool wide_b = n % Of::PIECE == 0 && is_aligned(b, 16);
        u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        u32 first = warp % BELOW * 16, first_column = warp / BELOW * OWN;
        u32 group = lane / 4, within = lane % 4;
        auto row_of = [&](u32 i) { return blockIdx.y * ROWS + first + group + (i < 2 ? 0 : 8); };
        auto column_of = [&](u32 j, u32 i) {
            return blockIdx.x * COLUMNS + first_column + j * 8 + within * 2 + (i & 1);
        };
        bool is_idle = blockIdx.y * ROWS + first >= m;

        float sum[OWN / 8][4];
#pragma unroll
        for (u32 j = 0; j < OWN / 8; j++) {
#pragma unroll
            for (u32 i = 0; i < 4; i++) {
                u32 row = row_of(i), col = column_of(j, i);
                bool goes_on = resume && row < m && col < n;
                sum[j][i] = goes_on ? out[(u64)row * n + col] : 0.0f;
            }
        }

        u32 tiles = (k + DEPTH - 1) / DEPTH;
#pragma unroll 1
        for (u32 t = 0; t < STAGES - 1; t++) {
            if (t < tiles) Of::load(stages[t], a, a_rows, b, m, k, n, t * DEPTH, wide_a, wide_b);
            commit_copies();
        }
#pragma unroll 1
        for (u32 t = 0; t < tiles; t++) {
            wait_copies<STAGES - 2>();
            __syncthreads();
            u32 next = t + STAGES - 1;
            if (next < tiles)
                Of::load(stages[next % STAGES], a, a_rows, b, m, k, n, next * DEPTH, wide_a,
                         wide_b);
            commit_copies();
            if (is_idle) continue;
            const typename Of::Stage &s = stages[t % STAGES];
#pragma unroll
            for (u32 k0 = 0; k0 < DEPTH; k0 += 16) {
                u32 left[4];
#pragma unroll
                for (u32 i = 0; i < 4; i++) {
                    const float *from =
                        &s.a[first + group + (i % 2) * 8][k0 + within * 2 + (i / 2) * 8];
                    left[i] = pair(T{}, from[0], from[1]);
                }
#pragma unroll
                for (u32 j = 0; j < OWN / 8; j++) {
                    // Rows `k0..k0 + 16` of eight columns, turned.
                    u32 b0, b1;
                    load_turned(&s.b[k0 + lane % 16][first_column + j * 8], b0, b1);
                    multiply(T{}, sum[j], left, b0, b1);
                }
            }
        }

        // One element at a time, each moved to the first: the code of activations is long.
#pragma unroll 1
        for (u32 e = 0; e < OWN / 8 * 4; e++) {
            u32 row = row_of(e % 4), col = column_of(e / 4, e % 4);
            if (row < m && col < n) {
                u64 at = (u64)row * n + col;
                float v = sum[0][0];
                if (bias) v += bias[col];
                v = activate(act, v);
                if (residual) v += residual[at];
                out[at] = v;
            }
#pragma unroll
            for (u32 i = 1; i < OWN / 8 * 4; i++) sum[(i - 1) / 4][(i - 1) % 4] = sum[i / 4][i % 4];
        }
    }
};

#define MATRIX(NAME, T, ROWS, STAGES)                                                              \
    extern "C" __global__ void __launch_bounds__(128)                                               \
        NAME(const float *a, const int *a_rows, const T *b, float *out, u32 m, u32 k, u32 n,       \
             u32 resume, const float *bias, u32 act, const float *residual) {                      \
        Matrix<T, ROWS, STAGES>::run(a, a_rows, b, out, m, k, n, resume, bias, act, residual);     \
    }

// The launcher has the same rows and stages.
#define MATRICES(SUFFIX, T)                                                                        \
    MATRIX(gemm_matrix_##SUFFIX##_16, T, 16, 16)                                                    \
    MATRIX(gemm_matrix_##SUFFIX##_32, T, 32, 12)                                                    \
    MATRIX(gemm_matrix_##SUFFIX##_64, T, 64, 8)                                                     \
    MATRIX(gemm_matrix_##SUFFIX##_many, T, 64, 4)

MATRICES(f16, f16)
MATRICES(bf16, bf16)

INSTANCES(f32, float)
INSTANCES(f16, f16)
INSTANCES(bf16, bf16)
INSTANCES(i8, i8)
