// Softmax of rows.

template <class T> DEVICE void softmax(const float *x, float *out, u32 rows, u32 width) {
    u32 row = T::row();
    if (row >= rows) return;
    x += (u64)row * width;
    out += (u64)row * width;
    float top = NEG_INF;
    T::each4(width, [&](u32 at) {
        float4 v = load4_tail(x, at, width, NEG_INF);
        top = larger(larger(v.x, v.y), larger(larger(v.z, v.w), top));
    });
    top = T::max(top);
    float sum = 0;
    T::each4(width, [&](u32 at) {
        float4 v = load4_tail(x, at, width, NEG_INF);
        v = make_float4(exp_of(v.x - top), exp_of(v.y - top), exp_of(v.z - top), exp_of(v.w - top));
        sum += (v.x + v.y) + (v.z + v.w);
        store4_tail(out, at, width, v);
    });
    sum = T::sum(sum);
    // Each thread reads back what it wrote itself.
    T::each4(width, [&](u32 at) {
        float4 v = load4_tail(out, at, width, 0.0f);
        store4_tail(out, at, width, make_float4(v.x / sum, v.y / sum, v.z / sum, v.w / sum));
    });
}

KERNEL softmax_warp(const float *x, float *out, u32 rows, u32 width) {
    softmax<Team<32>>(x, out, rows, width);
}
KERNEL softmax_block(const float *x, float *out, u32 rows, u32 width) {
    softmax<Team<256>>(x, out, rows, width);
}
