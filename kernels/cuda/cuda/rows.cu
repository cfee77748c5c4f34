// Copies of rows; elements are 4 bytes of any kind.

struct Span {
    const u32 *from;
    u32 *to;
    u32 copied, zeroed;
};

// Copies a run, the threads of all blocks of the grid's first dimension together; zeros from null.
DEVICE void copy_run(const u32 *from, u32 *to, u32 len) {
    u32 first = blockIdx.x * blockDim.x + threadIdx.x, step = gridDim.x * blockDim.x;
    u32 wide = is_aligned(to, 16) && is_aligned(from, 16) ? len / 4 : 0;
    for (u32 i = first; i < wide; i += step)
        ((uint4 *)to)[i] = from ? ((const uint4 *)from)[i] : make_uint4(0, 0, 0, 0);
    for (u32 i = 4 * wide + first; i < len; i += step) to[i] = from ? from[i] : 0;
}

KERNEL copy_spans(const Span *spans, u32 num_spans) {
    for (u32 i = blockIdx.y; i < num_spans; i += gridDim.y) {
        Span span = spans[i];
        copy_run(span.from, span.to, span.copied);
        copy_run(nullptr, span.to + span.copied, span.zeroed);
    }
}

KERNEL move_rows(const u32 *x, const int *table, u32 *out, u32 rows, u32 elems, u32 scatters) {
    for (u32 i = blockIdx.y; i < rows; i += gridDim.y) {
        int other = table[i];
        const u32 *from = x;
        u32 *to = out;
        if (scatters) {
            if (other < 0) continue;
            if (x) from += (u64)i * elems;
            to += (u64)other * elems;
        } else {
            from = other < 0 ? nullptr : x + (u64)other * elems;
            to += (u64)i * elems;
        }
        copy_run(from, to, elems);
    }
}

KERNEL copy_columns(const u32 *x, u32 x_width, u32 from, u32 *out, u32 out_width, u32 to, u32 rows,
                    u32 len) {
    EACH_ITEM(i, rows * len) {
        u32 row = i / len, at = i % len;
        out[row * out_width + to + at] = x[row * x_width + from + at];
    }
}

KERNEL mean_rows(const float *x, const Member *members, float *out, u32 width) {
    Member m = members[blockIdx.y];
    u32 at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= width) return;
    float sum = 0;
    for (u32 row = 0; row < m.own; row++) sum += x[(u64)(m.start + row) * width + at];
    out[(u64)m.sample * width + at] = sum / (float)m.own;
}

KERNEL pick_rows(const u32 *x, const Member *members, u32 *out, u32 width, u32 is_last) {
    Member m = members[blockIdx.y];
    u32 at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= width) return;
    u32 row = m.start + (is_last && m.own > 0 ? m.own - 1 : 0);
    out[(u64)m.sample * width + at] = x[(u64)row * width + at];
}
