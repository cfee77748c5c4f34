// Convolution, NCHW: for each group a product of filters with windows that are gathered as they are
// needed.

DEVICE void finish(const ConvShape &s, const float *bias, const float *residual, float *out, u32 filter,
                   u64 at, float v) {
    if (bias) v += bias[filter];
    if (residual) v += residual[at];
    out[at] = activate(s.act, v);
}

// Where a step of a chain reads: the channel's and the element's offset, and the element itself.
struct Tap {
    u32 offset, y, x;
};

#define TILE 64
#define DEPTH 16

// 64 filters of a group and 64 pixels in a block, 4 x 4 in each of 256 threads.
template <class T>
DEVICE void conv(const float *x, const T *weights, const float *bias, const float *residual,
                 float *out, const ConvShape &s) {
    __shared__ __align__(16) float left[DEPTH][TILE + 4], right[DEPTH][TILE];
    __shared__ Tap taps[2][DEPTH];
    u32 group = blockIdx.z, per = s.channels / s.groups, filters = s.filters / s.groups;
    u32 area = s.kernel[0] * s.kernel[1], chain = per * area;
    u32 plane = s.out[0] * s.out[1], pixels = s.rows * plane;
    u32 first_filter = blockIdx.y * TILE, first_pixel = blockIdx.x * TILE;

    // The pixel that this thread gathers, and the window's first element there; the padding wraps
    // to large numbers.
    u32 mine = first_pixel + threadIdx.x % TILE;
    u32 image = mine / plane, oy = mine % plane / s.out[1], ox = mine % s.out[1];
    u32 y0 = oy * s.stride[0] - s.pad[0], x0 = ox * s.stride[1] - s.pad[1];
    const float *from = x + ((u64)image * s.channels + group * per) * s.size[0] * s.size[1];

    auto tap = [&](u32 k) {
        u32 c = k / area, ky = k % area / s.kernel[1], kx = k % area % s.kernel[1];
        return Tap{c * s.size[0] * s.size[1], ky, kx};
    };
    if (threadIdx.x < DEPTH) taps[0][threadIdx.x] = tap(threadIdx.x);

    u32 tx = threadIdx.x % 16, ty = threadIdx.x / 16;
    float sum[4][4] = {};
    for (u32 k0 = 0, turn = 0; k0 < chain; k0 += DEPTH, turn ^= 1) {
        __syncthreads();
        if (threadIdx.x < DEPTH) taps[turn ^ 1][threadIdx.x] = tap(k0 + DEPTH + threadIdx.x);
        u32 filter = first_filter + threadIdx.x / 4, at = threadIdx.x % 4 * 4;
        for (u32 i = 0; i < 4; i++) {
            u32 k = k0 + at + i;
            bool is_there = filter < filters && k < chain;
            u64 place = (u64)(group * filters + filter) * chain + k;
            left[at + i][threadIdx.x / 4] = is_there ? widen(weights[place]) : 0.0f;
        }
        for (u32 i = threadIdx.x / TILE; i < DEPTH; i += 256 / TILE) {
            Tap t = taps[turn][i];
            u32 y = y0 + t.y, xx = x0 + t.x;
            bool is_there = mine < pixels && k0 + i < chain && y < s.size[0] && xx < s.size[1];
            right[i][threadIdx.x % TILE] = is_there ? from[t.offset + y * s.size[1] + xx] : 0.0f;
        }
        __syncthreads();
#pragma unroll
        for (u32 i = 0; i < DEPTH; i++) {
            float4 a = *(const float4 *)&left[i][4 * ty], b = *(const float4 *)&right[i][4 * tx];
            float l[4] = {a.x, a.y, a.z, a.w}, r[4] = {b.x, b.y, b.z, b.w};
#pragma unroll
            for (u32 f = 0; f < 4; f++) {
#pragma unroll
                for (u32 p = 0; p < 4; p++) sum[f][p] = fmaf(l[f], r[p], sum[f][p]);
            }
        }
    }
    // One filter at a time, each moved to the first: the code of activations is long.
#pragma unroll 1
    for (u32 f = 0; f < 4; f++) {
        u32 filter = first_filter + 4 * ty + f;
#pragma unroll
        for (u32 p = 0; p < 4; p++) {
            u32 pixel = first_pixel + 4 * tx + p;
            if (filter < filters && pixel < pixels) {
                u32 to = group * filters + filter;
                u64 at = ((u64)(pixel / plane) * s.filters + to) * plane + pixel % plane;
                finish(s, bias, residual, out, to, at, sum[0][p]);
            }
            sum[0][p] = sum[1][p];
            sum[1][p] = sum[2][p];
            sum[2][p] = sum[3][p];
        }
    }
}

// One thread for each output element.
template <class T>
DEVICE void conv_direct(const float *x, const T *weights, const float *bias, const float *residual,
                        float *out, const ConvShape &s) {
    u32 plane = s.out[0] * s.out[1], per = s.channels / s.groups;
    EACH_ITEM(i, s.rows * s.filters * plane) {
        u32 ox = i % s.out[1], oy = i / s.out[1] % s.out[0];
        u32 filter = i / plane % s.filters, image = i / plane / s.filters;
        u32 group = filter / (s.filters / s.groups);
        const T *w = weights + (u64)filter * per * s.kernel[0] * s.kernel[1];
        float sum = 0;
        for (u32 c = 0; c < per; c++) {
            u64 channel = (u64)image * s.channels + group * per + c;
            const float *from = x + channel * s.size[0] * s.size[1];
            for (u32 ky = 0; ky < s.kernel[0]; ky++) {
                u32 y = oy * s.stride[0] + ky - s.pad[0];
                for (u32 kx = 0; kx < s.kernel[1]; kx++, w++) {
                    u32 at = ox * s.stride[1] + kx - s.pad[1];
                    if (y < s.size[0] && at < s.size[1])
                        sum = fmaf(widen(*w), from[y * s.size[1] + at], sum);
                }
            }
        }
        finish(s, bias, residual, out, filter, i, sum);
    }
}

#define INSTANCES(SUFFIX, T)                                                                       \
    extern "C" __global__ void __launch_bounds__(256)                                              \
        conv_##SUFFIX(const float *x, const T *weights, const float *bias, const float *residual,  \
                      float *out, ConvShape s) {                                                       \
        conv(x, weights, bias, residual, out, s);                                                  \
    }                                                                                              \
    KERNEL conv_direct_##SUFFIX(const float *x, const T *weights, const float *bias,               \
                                const float *residual, float *out, ConvShape s) {                      \
        conv_direct(x, weights, bias, residual, out, s);                                           \
    }

INSTANCES(f32, float)
INSTANCES(f16, f16)
INSTANCES(bf16, bf16)
