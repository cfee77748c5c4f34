// What every source begins with. No header is included: NVRTC's packages do not carry them all.
//
// Sources are compiled without contraction, so what is written is what is computed: fused
// multiply-adds are `fmaf`, divisions and roots are exactly rounded, small numbers are kept.

typedef unsigned char u8;
typedef signed char i8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define KERNEL extern "C" __global__ void
#define DEVICE __device__ __forceinline__
#define NEG_INF __int_as_float(0xff800000)

// Lanes of a warp, as a mask.
#define ALL_LANES 0xffffffffu

// Rows of the table that says where members' rows are.
struct Member {
    u32 start, rows, own, sample;
};

// A convolution, NCHW.
struct ConvShape {
    u32 rows, channels;
    u32 size[2];
    u32 filters;
    u32 out[2], kernel[2], stride[2], pad[2];
    u32 groups, act;
};

// ---- stored weights ----

struct f16 {
    u16 bits;
};
struct bf16 {
    u16 bits;
};

DEVICE float widen(float x) { return x; }
DEVICE float widen(i8 x) { return (float)x; }
DEVICE float widen(bf16 x) { return __uint_as_float((u32)x.bits << 16); }
DEVICE float widen(f16 x) {
    float y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
    return y;
}

DEVICE u16 to_f16(float x) {
    u16 y;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y) : "f"(x));
    return y;
}
// Rounds to nearest, ties to even; what is no number stays none.
DEVICE u16 to_bf16(float x) {
    u32 bits = __float_as_uint(x);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return (u16)(bits >> 16 | 0x40);
    return (u16)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// Whether an address is a multiple of so many bytes.
DEVICE bool is_aligned(const void *p, u32 bytes) { return ((u64)p & (bytes - 1)) == 0; }

// Four elements that lie on a multiple of their size.
DEVICE float4 load4(const float *p) { return *(const float4 *)p; }
template <class H> DEVICE float4 load4_halves(const H *p) {
    ushort4 v = *(const ushort4 *)p;
    return make_float4(widen(H{v.x}), widen(H{v.y}), widen(H{v.z}), widen(H{v.w}));
}
DEVICE float4 load4(const f16 *p) { return load4_halves(p); }
DEVICE float4 load4(const bf16 *p) { return load4_halves(p); }
DEVICE float4 load4(const i8 *p) {
    char4 v = *(const char4 *)p;
    return make_float4((float)v.x, (float)v.y, (float)v.z, (float)v.w);
}

// Elements `at..at + 4` of `width`, those behind the end filled.
template <class T> DEVICE float4 load4_tail(const T *p, u32 at, u32 width, float fill) {
    if (at + 4 <= width && is_aligned(p + at, 4 * sizeof(T))) return load4(p + at);
    float4 v = make_float4(fill, fill, fill, fill);
    if (at < width) v.x = widen(p[at]);
    if (at + 1 < width) v.y = widen(p[at + 1]);
    if (at + 2 < width) v.z = widen(p[at + 2]);
    if (at + 3 < width) v.w = widen(p[at + 3]);
    return v;
}
DEVICE void store4_tail(float *p, u32 at, u32 width, float4 v) {
    if (at + 4 <= width && is_aligned(p + at, 16)) {
        *(float4 *)(p + at) = v;
        return;
    }
    if (at < width) p[at] = v.x;
    if (at + 1 < width) p[at + 1] = v.y;
    if (at + 2 < width) p[at + 2] = v.z;
    if (at + 3 < width) p[at + 3] = v.w;
}

// ---- elementary functions ----
//
// Operation by operation those of the cpu device, which names their sources, so that both give the
// same bits.

DEVICE float larger(float a, float b) { return a > b ? a : b; }
DEVICE float smaller(float a, float b) { return a < b ? a : b; }

// Exact zero below -104, infinity above 88.8.
DEVICE float exp_of(float x) {
    const float magic = 12582912.0f;
    x = larger(-104.0f, smaller(88.8f, x));
    float t = fmaf(x, 1.44269504088896340736f, magic);
    float n = t - magic;
    float r = fmaf(n, -0.693359375f, x);
    r = fmaf(n, 2.1219444e-4f, r);
    float p = 1.9875692e-4f;
    p = fmaf(p, r, 1.3981999e-3f);
    p = fmaf(p, r, 8.333452e-3f);
    p = fmaf(p, r, 4.1665796e-2f);
    p = fmaf(p, r, 1.6666665e-1f);
    p = fmaf(p, r, 0.5f);
    p = fmaf(p, r * r, r) + 1.0f;
    int i = (int)(__float_as_uint(t) - __float_as_uint(magic));
    int half = i >> 1;
    float a = __uint_as_float((u32)(half + 127) << 23);
    float b = __uint_as_float((u32)(i - half + 127) << 23);
    return p * a * b;
}

// Numerator and denominator of `tanh_of`.
DEVICE float2 tanh_parts(float x) {
    float c = larger(-7.905311f, smaller(7.905311f, x));
    float s = c * c;
    float p = -2.7607684e-16f;
    p = fmaf(p, s, 2.000188e-13f);
    p = fmaf(p, s, -8.604672e-11f);
    p = fmaf(p, s, 5.1222971e-8f);
    p = fmaf(p, s, 1.4857224e-5f);
    p = fmaf(p, s, 6.3726193e-4f);
    p = fmaf(p, s, 4.8935246e-3f);
    float q = 1.1982584e-6f;
    q = fmaf(q, s, 1.1853471e-4f);
    q = fmaf(q, s, 2.2684346e-3f);
    q = fmaf(q, s, 4.893525e-3f);
    return make_float2(c * p, q);
}

DEVICE float tanh_of(float x) {
    float2 parts = tanh_parts(x);
    return parts.x / parts.y;
}

// 1 + e^-x, finite.
DEVICE float logistic_divisor(float x) {
    const float magic = 12582912.0f;
    x = larger(-87.3f, smaller(86.0f, x));
    float t = fmaf(x, -1.44269504088896340736f, magic);
    float n = t - magic;
    float r = fmaf(n, 0.693359375f, x);
    r = fmaf(n, -2.1219444e-4f, r);
    float p = -8.312478e-3f;
    p = fmaf(p, r, 4.189055e-2f);
    p = fmaf(p, r, -1.6667116e-1f);
    p = fmaf(p, r, 4.9999229e-1f);
    p = fmaf(p, r, -1.0f);
    p = fmaf(p, r, 1.0f);
    float scale = __uint_as_float((__float_as_uint(t) << 23) + (127u << 23));
    return fmaf(p, scale, 1.0f);
}

DEVICE float sigmoid_of(float x) { return 1.0f / logistic_divisor(x); }

DEVICE float erf_of(float x) {
    float c = larger(-4.0f, smaller(4.0f, x));
    float s = c * c;
    float p = -2.7261423e-10f;
    p = fmaf(p, s, 2.7706814e-8f);
    p = fmaf(p, s, -2.101024e-6f);
    p = fmaf(p, s, -5.6925064e-5f);
    p = fmaf(p, s, -7.3499063e-4f);
    p = fmaf(p, s, -2.9545998e-3f);
    p = fmaf(p, s, -1.6096033e-2f);
    float q = -1.4566072e-5f;
    q = fmaf(q, s, -2.1337406e-4f);
    q = fmaf(q, s, -1.682827e-3f);
    q = fmaf(q, s, -7.373329e-3f);
    q = fmaf(q, s, -1.4264739e-2f);
    float near = larger(-1.0f, smaller(1.0f, c * p / q));
    float far = x >= 4.0f ? 1.0f : near;
    return x <= -4.0f ? -1.0f : far;
}

// Activations by the launcher's code; 0 is none.
__device__ inline float activate(u32 act, float x) {
    switch (act) {
    case 1: return larger(0.0f, x);
    case 2: return larger(0.0f, smaller(6.0f, x));
    case 3: return x * 0.5f * (1.0f + erf_of(x * 0.70710678118654752440f));
    case 4: return tanh_of(x);
    case 5: return sigmoid_of(x);
    case 6: return x * sigmoid_of(x);
    default: return x;
    }
}

// ---- reductions ----
//
// In a fixed order; every lane, or thread, gets the result.

DEVICE float warp_sum(float x) {
    for (u32 lanes = 16; lanes > 0; lanes /= 2) x += __shfl_xor_sync(ALL_LANES, x, lanes);
    return x;
}
DEVICE float warp_max(float x) {
    for (u32 lanes = 16; lanes > 0; lanes /= 2)
        x = larger(__shfl_xor_sync(ALL_LANES, x, lanes), x);
    return x;
}

// ---- the order of a row ----

// Place in the order: larger ones come first, no two are alike. Zeros of either sign are equals, of
// which the lower index comes first; what is no number comes last. Never zero.
DEVICE u64 rank_of(float x, u32 at, u32 largest) {
    u32 bits = __float_as_uint((largest ? x : -x) + 0.0f);
    u32 key = bits ^ ((u32)((int)bits >> 31) | 0x80000000u);
    if (x != x) key = 0;
    return (u64)key << 32 | (u32)~at;
}

DEVICE u64 higher(u64 a, u64 b) { return a > b ? a : b; }

// The score of a rank: of zeros that without a sign, and no number for what is none.
DEVICE float score_of(u64 rank) {
    u32 key = (u32)(rank >> 32);
    return __uint_as_float(key >> 31 ? key ^ 0x80000000u : ~key);
}

// The highest of a warp's ranks.
DEVICE u64 warp_highest(u64 rank) {
    u32 key = __reduce_max_sync(ALL_LANES, (u32)(rank >> 32));
    u32 rest = (u32)(rank >> 32) == key ? (u32)rank : 0;
    return (u64)key << 32 | __reduce_max_sync(ALL_LANES, rest);
}

// Calls `f(element, at, is_new)` for every `step`th element from `at` to `end`, `NUM` of them asked
// for before the first is looked at. Without branches: instead of what is behind the end, one that
// was there before comes again, and is not new.
template <u32 NUM, class F> DEVICE void each_ahead(const float *x, u32 at, u32 end, u32 step, F f) {
#pragma unroll 1
    for (; at < end; at += NUM * step) {
        float v[NUM];
#pragma unroll
        for (u32 i = 0; i < NUM; i++) {
            u32 next = at + i * step;
            v[i] = x[next < end ? next : at];
        }
#pragma unroll
        for (u32 i = 0; i < NUM; i++) {
            u32 next = at + i * step;
            f(v[i], next < end ? next : at, next < end);
        }
    }
}

// A bound of ranks between two that differ, found bit by bit: the highest of which `count(bound)`,
// how many are at it or above, is `k` or more; or one of which it is `most` or less too. So many are
// at the lower one.
template <class F> DEVICE u64 bound_between(u64 low, u64 high, u32 k, u32 most, F count) {
    u64 bit = 1ull << (63 - __clzll((long long)(low ^ high)));
    u64 bound = low & ~(2 * bit - 1);
#pragma unroll 1
    for (; bit > 0; bit /= 2) {
        u32 num = count(bound | bit);
        if (num < k) continue;
        bound |= bit;
        if (num <= most) break;
    }
    return bound;
}

// The threads that share a row: a warp, or a block of 256.
template <u32 THREADS> struct Team {
    // Which row of the launch this team has.
    static __device__ __forceinline__ u32 row() {
        return THREADS == 32 ? (blockIdx.x * blockDim.x + threadIdx.x) / 32 : blockIdx.x;
    }
    static __device__ __forceinline__ u32 thread() { return threadIdx.x % THREADS; }
    // Joins one value per warp by `join`, in order of warps.
    template <class F> static __device__ __forceinline__ float across_warps(float x, F join) {
        if (THREADS == 32) return x;
        __shared__ float parts[THREADS / 32];
        __syncthreads();
        if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = x;
        __syncthreads();
        float all = parts[0];
        for (u32 i = 1; i < THREADS / 32; i++) all = join(all, parts[i]);
        return all;
    }
    static __device__ __forceinline__ float sum(float x) {
        return across_warps(warp_sum(x), [](float a, float b) { return a + b; });
    }
    static __device__ __forceinline__ float max(float x) {
        return across_warps(warp_max(x), [](float a, float b) { return larger(b, a); });
    }
    // Calls `f(at)` for every fourth element of this thread's share of a row.
    template <class F> static __device__ __forceinline__ void each4(u32 width, F f) {
        for (u32 at = 4 * thread(); at < width; at += 4 * THREADS) f(at);
    }
};

// ---- matrix instructions ----

// Two numbers, the first in the lower half.
DEVICE u32 pair(f16, float low, float high) {
    u32 both;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}
DEVICE u32 pair(bf16, float low, float high) {
    u32 both;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}

// `c += a b`: 16 x 16 times 16 x 8, spread over the lanes as PTX says.
DEVICE void multiply(f16, float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
DEVICE void multiply(bf16, float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Two matrices of 8 x 8 numbers in shared memory, one below the other, turned; lanes 0 to 15 say where
// their rows are.
DEVICE void load_turned(const void *row, u32 &b0, u32 &b1) {
    u32 at = (u32)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                 : "=r"(b0), "=r"(b1)
                 : "r"(at)
                 : "memory");
}

// ---- copies behind the threads' backs ----

// Starts a copy of 16 bytes into shared memory behind the thread's back.
DEVICE void copy_async(void *to, const void *from) {
    u32 at = (u32)__cvta_generic_to_shared(to);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at), "l"(from) : "memory");
}
// Ends a group of such copies.
// The same, or zeros.
DEVICE void copy_async_or_zero(void *to, const void *from, bool is_there) {
    u32 at = (u32)__cvta_generic_to_shared(to), bytes = is_there ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at), "l"(from), "r"(bytes)
                 : "memory");
}
DEVICE void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until all but the last `N` groups are there.
template <u32 N> DEVICE void wait_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

// ---- items ----

// Every item of a launch: as many threads as it has share `len` of them.
#define EACH_ITEM(i, len)                                                                          \
    for (u32 i = blockIdx.x * blockDim.x + threadIdx.x; i < (len); i += gridDim.x * blockDim.x)
