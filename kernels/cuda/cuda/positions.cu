// Positions.

// Sine and cosine of `turn` full turns.
//
// Source: polynomials of Cephes `sinf` and `cosf` on an eighth of a turn to either side; the
// reduction is in double precision, so that far positions are as exact as near ones.
DEVICE void turned(double turn, float *sine, float *cosine) {
    turn -= rint(turn);
    double quarter = rint(4.0 * turn);
    float a = (float)((turn - 0.25 * quarter) * 6.283185307179586476925);
    float z = a * a;
    float s = fmaf(fmaf(-1.9515295891e-4f, z, 8.3321608736e-3f), z, -1.6666654611e-1f);
    s = fmaf(s * z, a, a);
    float c = fmaf(fmaf(2.443315711809948e-5f, z, -1.388731625493765e-3f), z, 4.166664568298827e-2f);
    c = fmaf(c, z * z, fmaf(-0.5f, z, 1.0f));
    u32 q = (u32)(int)quarter & 3;
    float odd = q & 1 ? c : s, even = q & 1 ? s : c;
    *sine = q >= 2 ? -odd : odd;
    *cosine = q == 1 || q == 2 ? -even : even;
}

KERNEL rope(const float *x, const int *positions, const double *turns, float *out, u32 rows,
            u32 heads, u32 dim) {
    u32 half = dim / 2;
    EACH_ITEM(i, rows * half) {
        u32 row = i / half, pair = i % half;
        float sine, cosine;
        turned((double)positions[row] * turns[pair], &sine, &cosine);
        u64 at = (u64)row * heads * dim + 2 * pair;
        for (u32 head = 0; head < heads; head++, at += dim) {
            float a = x[at], b = x[at + 1];
            out[at] = fmaf(a, cosine, -(b * sine));
            out[at + 1] = fmaf(a, sine, b * cosine);
        }
    }
}

KERNEL add_position(const float *x, const float *table, u32 last, const int *positions, float *out,
                    u32 len, u32 width) {
    EACH_ITEM(i, len) {
        u32 position = (u32)positions[i / width];
        position = position < last ? position : last;
        out[i] = x[i] + table[(u64)position * width + i % width];
    }
}
