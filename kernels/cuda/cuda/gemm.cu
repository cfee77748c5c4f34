// Matrix products in tiles, by multiply-adds. Tiles of both sides come into shared memory some steps
// ahead; every output element is one chain of fused multiply-adds in order of `k` in one thread's
// register.

DEVICE float part(float4 v, u32 i) { return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w; }

// `ROWS x COLUMNS` outputs of a block, `TM x TN` of a thread; `DEPTH` steps of `k` in a tile,
// `STAGES` tiles in shared memory. `T` is the stored type of the right side.
template <class T, u32 ROWS, u32 COLUMNS, u32 DEPTH, u32 TM, u32 TN, u32 STAGES>
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
        T b[DEPTH][COLUMNS];
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

INSTANCES(f32, float)
INSTANCES(f16, f16)
INSTANCES(bf16, bf16)
INSTANCES(i8, i8)
