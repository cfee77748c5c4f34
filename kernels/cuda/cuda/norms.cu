// Normalisations. Sums in two passes: the mean, then the squares of the differences from it.

// Normalises a row whose elements `get(at)` gives, four at a time and `fill` behind its end.
template <class T, class Get>
DEVICE void normalise(Get get, const float *gamma, const float *beta, float eps, float *out,
                      u32 width) {
    float sum = 0;
    T::each4(width, [&](u32 at) {
        float4 v = get(at, 0.0f);
        sum += (v.x + v.y) + (v.z + v.w);
    });
    float mean = T::sum(sum) / (float)width;
    float squares = 0;
    T::each4(width, [&](u32 at) {
        float4 v = get(at, mean);
        float a = v.x - mean, b = v.y - mean, c = v.z - mean, d = v.w - mean;
        squares = fmaf(d, d, fmaf(c, c, fmaf(b, b, fmaf(a, a, squares))));
    });
    float var = T::sum(squares) / (float)width;
    float inv = 1.0f / sqrtf(var + eps);
    T::each4(width, [&](u32 at) {
        float4 v = get(at, 0.0f);
        float4 g = load4_tail(gamma, at, width, 0.0f), b = load4_tail(beta, at, width, 0.0f);
        v.x = fmaf((v.x - mean) * inv, g.x, b.x);
        v.y = fmaf((v.y - mean) * inv, g.y, b.y);
        v.z = fmaf((v.z - mean) * inv, g.z, b.z);
        v.w = fmaf((v.w - mean) * inv, g.w, b.w);
        store4_tail(out, at, width, v);
    });
}

template <class T>
DEVICE void layer_norm(const float *x, const float *gamma, const float *beta, float eps, float *out,
                       u32 rows, u32 width) {
    u32 row = T::row();
    if (row >= rows) return;
    const float *from = x + (u64)row * width;
    auto get = [&](u32 at, float fill) { return load4_tail(from, at, width, fill); };
    normalise<T>(get, gamma, beta, eps, out + (u64)row * width, width);
}

template <class T>
DEVICE void add_layer_norm(const float *x, const float *y, const float *gamma, const float *beta,
                           float eps, float *sum, float *out, u32 rows, u32 width) {
    u32 row = T::row();
    if (row >= rows) return;
    u64 start = (u64)row * width;
    T::each4(width, [&](u32 at) {
        float4 a = load4_tail(x + start, at, width, 0.0f), b = load4_tail(y + start, at, width, 0.0f);
        float4 both = make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
        store4_tail(sum + start, at, width, both);
    });
    // Each thread reads back what it wrote itself.
    auto get = [&](u32 at, float fill) { return load4_tail(sum + start, at, width, fill); };
    normalise<T>(get, gamma, beta, eps, out + start, width);
}

template <class T>
DEVICE void rms_norm(const float *x, const float *gamma, float eps, float *out, u32 rows,
                     u32 width) {
    u32 row = T::row();
    if (row >= rows) return;
    x += (u64)row * width;
    out += (u64)row * width;
    float squares = 0;
    T::each4(width, [&](u32 at) {
        float4 v = load4_tail(x, at, width, 0.0f);
        squares = fmaf(v.w, v.w, fmaf(v.z, v.z, fmaf(v.y, v.y, fmaf(v.x, v.x, squares))));
    });
    float inv = 1.0f / sqrtf(T::sum(squares) / (float)width + eps);
    T::each4(width, [&](u32 at) {
        float4 v = load4_tail(x, at, width, 0.0f), g = load4_tail(gamma, at, width, 0.0f);
        v.x = v.x * inv * g.x;
        v.y = v.y * inv * g.y;
        v.z = v.z * inv * g.z;
        v.w = v.w * inv * g.w;
        store4_tail(out, at, width, v);
    });
}

#define INSTANCES(SUFFIX, THREADS)                                                                 \
    KERNEL layer_norm_##SUFFIX(const float *x, const float *gamma, const float *beta, float eps,   \
                               float *out, u32 rows, u32 width) {                                  \
        layer_norm<Team<THREADS>>(x, gamma, beta, eps, out, rows, width);                          \
    }                                                                                              \
    KERNEL add_layer_norm_##SUFFIX(const float *x, const float *y, const float *gamma,             \
                                   const float *beta, float eps, float *sum, float *out, u32 rows, \
                                   u32 width) {                                                    \
        add_layer_norm<Team<THREADS>>(x, y, gamma, beta, eps, sum, out, rows, width);              \
    }                                                                                              \
    KERNEL rms_norm_##SUFFIX(const float *x, const float *gamma, float eps, float *out, u32 rows,  \
                             u32 width) {                                                          \
        rms_norm<Team<THREADS>>(x, gamma, eps, out, rows, width);                                  \
    }

INSTANCES(warp, 32)
INSTANCES(block, 256)

KERNEL batch_norm(const float *x, const float *gamma, const float *beta, const float *mean,
                  const float *var, float eps, float *out, u32 len, u32 channels, u32 plane) {
    EACH_ITEM(i, len) {
        u32 c = i / plane % channels;
        float inv = 1.0f / sqrtf(var[c] + eps);
        out[i] = fmaf((x[i] - mean[c]) * inv, gamma[c], beta[c]);
    }
}
