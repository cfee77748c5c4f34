// Rows of paged sequence states.

#define PAGE 16

// Element `at` of the state's row that row `row` of a tensor is; null if it is none.
DEVICE float *place(float *pool, const int *pages, u32 max_pages, const int *sequences,
                    const int *positions, u32 row, u32 width) {
    int position = positions[row];
    if (position < 0) return nullptr;
    u32 sequence = sequences ? (u32)sequences[row] : row;
    u32 page = (u32)pages[(u64)sequence * max_pages + (u32)position / PAGE];
    return pool + ((u64)page * PAGE + (u32)position % PAGE) * width;
}

KERNEL seq_write(const float *x, float *pool, const int *pages, u32 max_pages, const int *sequences,
                 const int *positions, u32 rows, u32 width) {
    u32 at = 4 * (blockIdx.x * blockDim.x + threadIdx.x);
    if (at >= width) return;
    for (u32 row = blockIdx.y; row < rows; row += gridDim.y) {
        float *to = place(pool, pages, max_pages, sequences, positions, row, width);
        if (!to) continue;
        float4 v = make_float4(0, 0, 0, 0);
        if (x) v = load4_tail(x + (u64)row * width, at, width, 0.0f);
        store4_tail(to, at, width, v);
    }
}

KERNEL seq_read(float *out, float *pool, const int *pages, u32 max_pages, const int *sequences,
                const int *positions, u32 rows, u32 width) {
    u32 at = 4 * (blockIdx.x * blockDim.x + threadIdx.x);
    if (at >= width) return;
    for (u32 row = blockIdx.y; row < rows; row += gridDim.y) {
        const float *from = place(pool, pages, max_pages, sequences, positions, row, width);
        float4 v = make_float4(0, 0, 0, 0);
        if (from) v = load4_tail(from, at, width, 0.0f);
        store4_tail(out + (u64)row * width, at, width, v);
    }
}
