// Sample kernels, header-free as NVRTC's packages carry no headers.

__device__ __forceinline__ float f16_to_f32(unsigned short h) {
    float f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h));
    return f;
}

__device__ __forceinline__ unsigned short f32_to_f16(float f) {
    unsigned short h;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(f));
    return h;
}

__device__ __forceinline__ float bf16_to_f32(unsigned short b) {
    return __uint_as_float((unsigned)b << 16);
}

__device__ __forceinline__ unsigned short f32_to_bf16(float f) {
    unsigned u = __float_as_uint(f);
    return (unsigned short)((u + 0x7fff + ((u >> 16) & 1)) >> 16);
}

extern "C" __global__ void vector_add(const float* a, const float* b, float* c, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) c[i] = a[i] + b[i];
}

extern "C" __global__ void scale4(const float4* x, float4* y, float s, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        float4 v = x[i];
        y[i] = make_float4(v.x * s, v.y * s, v.z * s, v.w * s);
    }
}

// Sums of 256 values each; one block each.
extern "C" __global__ void block_sum(const float* x, float* sums) {
    __shared__ float s[256];
    int t = threadIdx.x;
    s[t] = x[blockIdx.x * 256 + t];
    __syncthreads();
    for (int k = 128; k > 0; k >>= 1) {
        if (t < k) s[t] += s[t + k];
        __syncthreads();
    }
    if (t == 0) sums[blockIdx.x] = s[0];
}

template <typename Load, typename Store>
__device__ void layer_norm(int n, Load load, Store store) {
    float sum = 0, squares = 0;
    for (int i = threadIdx.x; i < n; i += 32) {
        float v = load(i);
        sum += v;
        squares += v * v;
    }
    for (int o = 16; o; o >>= 1) {
        sum += __shfl_xor_sync(~0u, sum, o);
        squares += __shfl_xor_sync(~0u, squares, o);
    }
    float mean = sum / n, scale = rsqrtf(squares / n - mean * mean + 1e-5f);
    for (int i = threadIdx.x; i < n; i += 32) store(i, (load(i) - mean) * scale);
}

extern "C" __global__ void layer_norm_f32(const float* x, float* y, int n) {
    x += blockIdx.x * n;
    y += blockIdx.x * n;
    layer_norm(n, [=](int i) { return x[i]; }, [=](int i, float v) { y[i] = v; });
}

extern "C" __global__ void layer_norm_f16(const unsigned short* x, unsigned short* y, int n) {
    x += blockIdx.x * n;
    y += blockIdx.x * n;
    layer_norm(n, [=](int i) { return f16_to_f32(x[i]); }, [=](int i, float v) { y[i] = f32_to_f16(v); });
}

extern "C" __global__ void layer_norm_bf16(const unsigned short* x, unsigned short* y, int n) {
    x += blockIdx.x * n;
    y += blockIdx.x * n;
    layer_norm(n, [=](int i) { return bf16_to_f32(x[i]); }, [=](int i, float v) { y[i] = f32_to_bf16(v); });
}

extern "C" __global__ void softmax(const float* x, float* y, int n) {
    extern __shared__ float row[];
    x += blockIdx.x * n;
    y += blockIdx.x * n;
    float top = -1e30f, sum = 0;
    for (int i = threadIdx.x; i < n; i += 32) top = fmaxf(top, x[i]);
    for (int o = 16; o; o >>= 1) top = fmaxf(top, __shfl_xor_sync(~0u, top, o));
    for (int i = threadIdx.x; i < n; i += 32) {
        row[i] = expf(x[i] - top);
        sum += row[i];
    }
    for (int o = 16; o; o >>= 1) sum += __shfl_xor_sync(~0u, sum, o);
    for (int i = threadIdx.x; i < n; i += 32) y[i] = row[i] / sum;
}

// c[m][n] = a[m][k] * b[k][n], tiles of 16, any sizes.
extern "C" __global__ void gemm(const float* a, const float* b, float* c, int m, int n, int k) {
    __shared__ float ta[16][16], tb[16][17];
    int x = threadIdx.x, y = threadIdx.y;
    int row = blockIdx.y * 16 + y, col = blockIdx.x * 16 + x;
    float sum = 0;
    for (int at = 0; at < k; at += 16) {
        ta[y][x] = row < m && at + x < k ? a[row * k + at + x] : 0;
        tb[y][x] = col < n && at + y < k ? b[(at + y) * n + col] : 0;
        __syncthreads();
        for (int i = 0; i < 16; i++) sum += ta[y][i] * tb[i][x];
        __syncthreads();
    }
    if (row < m && col < n) c[row * n + col] = sum;
}

// One query row per block of 32 threads, which are the 32 values of a head; online softmax.
extern "C" __global__ void attention(const float* q, const float* k, const float* v, float* o, int rows) {
    int lane = threadIdx.x;
    float mine = q[blockIdx.x * 32 + lane], top = -1e30f, sum = 0, out = 0;
    for (int r = 0; r < rows; r++) {
        float dot = mine * k[r * 32 + lane];
        for (int s = 16; s; s >>= 1) dot += __shfl_xor_sync(~0u, dot, s);
        dot *= 0.17677669f;
        float next = fmaxf(top, dot), old = expf(top - next), weight = expf(dot - next);
        sum = sum * old + weight;
        out = out * old + weight * v[r * 32 + lane];
        top = next;
    }
    o[blockIdx.x * 32 + lane] = out / sum;
}

extern "C" __global__ void histogram(const unsigned* x, unsigned* bins, int n) {
    __shared__ unsigned mine[64];
    if (threadIdx.x < 64) mine[threadIdx.x] = 0;
    __syncthreads();
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) atomicAdd(&mine[x[i] % 64], 1u);
    __syncthreads();
    if (threadIdx.x < 64) atomicAdd(&bins[threadIdx.x], mine[threadIdx.x]);
}

// d[16][8] = a[16][16] * b[16][8]: one warp; a in rows, b in rows, both bf16 or both f16.
#define MMA(NAME, TYPE)                                                                            \
    extern "C" __global__ void NAME(const unsigned short* a, const unsigned short* b, float* d) {  \
        __shared__ __align__(16) unsigned short sa[16 * 16], sb[16 * 8];                           \
        int lane = threadIdx.x;                                                                    \
        unsigned to_a = (unsigned)__cvta_generic_to_shared(sa + lane * 8);                         \
        asm volatile("cp.async.ca.shared.global [%0], [%1], 16;" ::"r"(to_a), "l"(a + lane * 8));  \
        if (lane < 16) {                                                                           \
            unsigned to_b = (unsigned)__cvta_generic_to_shared(sb + lane * 8);                     \
            asm volatile("cp.async.ca.shared.global [%0], [%1], 16;" ::"r"(to_b), "l"(b + lane * 8)); \
        }                                                                                          \
        asm volatile("cp.async.commit_group;\n cp.async.wait_group 0;");                           \
        __syncwarp();                                                                              \
        unsigned f0, f1, f2, f3, g0, g1;                                                           \
        unsigned from_a = (unsigned)__cvta_generic_to_shared(sa + (lane % 16) * 16 + lane / 16 * 8); \
        unsigned from_b = (unsigned)__cvta_generic_to_shared(sb + (lane % 16) * 8);                \
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"               \
                     : "=r"(f0), "=r"(f1), "=r"(f2), "=r"(f3) : "r"(from_a));                      \
        asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];"               \
                     : "=r"(g0), "=r"(g1) : "r"(from_b));                                          \
        float d0, d1, d2, d3;                                                                      \
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." TYPE "." TYPE                        \
                     ".f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%10,%10,%10};"              \
                     : "=f"(d0), "=f"(d1), "=f"(d2), "=f"(d3)                                      \
                     : "r"(f0), "r"(f1), "r"(f2), "r"(f3), "r"(g0), "r"(g1), "f"(0.0f));           \
        int row = lane / 4, col = lane % 4 * 2;                                                    \
        d[row * 8 + col] = d0;                                                                     \
        d[row * 8 + col + 1] = d1;                                                                 \
        d[(row + 8) * 8 + col] = d2;                                                               \
        d[(row + 8) * 8 + col + 1] = d3;                                                           \
    }
MMA(mma_f16, "f16")
MMA(mma_bf16, "bf16")

// Calls, a switch, memory of a thread, a constant table, doubles and wide integers.
__constant__ float table[16];
__device__ int calls;

__device__ __noinline__ float polynomial(float x, int terms) {
    float sum = 0;
    for (int i = 0; i < terms; i++) sum = sum * x + table[i & 15];
    atomicAdd(&calls, 1);
    return sum;
}

extern "C" __global__ void mixed(const float* x, float* y, double* d, long long* l, int n) {
    int i = threadIdx.x;
    float mine[8];
    for (int k = 0; k < 8; k++) mine[k] = x[k] * (k + 1);
    float v = polynomial(x[i], n) + mine[(i * 5 + n) & 7];
    switch (i % 6) {
        case 0: v += 1; break;
        case 1: v *= 2; break;
        case 2: v = sinf(v); break;
        case 3: v = tanhf(v); break;
        case 4: v = logf(fabsf(v) + 1); break;
        default: v = powf(fabsf(v), 1.5f); break;
    }
    y[i] = v;
    d[i] = exp((double)x[i]) / 3 + sqrt((double)i);
    l[i] = ((long long)i << 33) / (n + 1) % 1000003 + __popc(i) - __clz(i + 1);
}

// The sum of all blocks by the last of them to finish.
__device__ unsigned finished;
extern "C" __global__ void last_block_sum(const float* x, float* partial, float* total) {
    __shared__ bool is_last;
    if (threadIdx.x == 0) {
        float sum = 0;
        for (int i = 0; i < 16; i++) sum += x[blockIdx.x * 16 + i];
        partial[blockIdx.x] = sum;
        __threadfence();
        is_last = atomicAdd(&finished, 1u) == gridDim.x - 1;
    }
    __syncthreads();
    if (is_last && threadIdx.x == 0) {
        float sum = 0;
        for (unsigned b = 0; b < gridDim.x; b++) sum += partial[b];
        *total = sum;
    }
}
