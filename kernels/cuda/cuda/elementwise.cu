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

// A step of a chain: an activation by its code, or one of those below, with the value so far where
// there is no operand.
struct Step {
    const float *with;
    u32 code, period;
    float factor;
    u32 filler;
};

KERNEL elementwise(const float *x, float *out, u32 len, const Step *steps, u32 num) {
    EACH_ITEM(i, len) {
        float v = x[i];
        for (u32 s = 0; s < num; s++) {
            Step step = steps[s];
            float y = step.with ? step.with[i % step.period] : v;
            switch (step.code) {
            case 16: v = v * step.factor; break;
            case 17: v = v + y; break;
            case 18: v = v - y; break;
            case 19: v = v * y; break;
            case 20: v = y - v; break;
            default: v = activate(step.code, v);
            }
        }
        out[i] = v;
    }
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
