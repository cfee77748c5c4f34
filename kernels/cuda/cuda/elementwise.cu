// Element by element.

KERNEL binary(u32 op, const float *a, const float *b, float *out, u32 len, u32 period) {
    EACH_ITEM(i, len) {
        float x = a[i], y = b[i % period];
        out[i] = op == 0 ? x + y : op == 1 ? x - y : x * y;
    }
}

KERNEL unary(u32 act, const float *x, float *out, u32 len) {
    EACH_ITEM(i, len) out[i] = activate(act, x[i]);
}

KERNEL scale(float factor, const float *x, float *out, u32 len) {
    EACH_ITEM(i, len) out[i] = x[i] * factor;
}

KERNEL epilogue(const float *x, float *out, u32 len, u32 features, const float *bias, u32 act,
                const float *residual) {
    EACH_ITEM(i, len) {
        float v = x[i];
        if (bias) v += bias[i % features];
        v = activate(act, v);
        if (residual) v += residual[i];
        out[i] = v;
    }
}

KERNEL convert_f16(const float *x, u16 *out, u32 len) {
    EACH_ITEM(i, len) out[i] = to_f16(x[i]);
}

KERNEL convert_bf16(const float *x, u16 *out, u32 len) {
    EACH_ITEM(i, len) out[i] = to_bf16(x[i]);
}
