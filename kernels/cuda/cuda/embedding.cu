// Sums of rows of a table, by id.

template <class T>
DEVICE void embed(const int *ids, const T *table, u32 table_rows, float *out, u32 rows, u32 bag,
                  u32 width) {
    u32 at = 4 * (blockIdx.x * blockDim.x + threadIdx.x);
    if (at >= width) return;
    for (u32 row = blockIdx.y; row < rows; row += gridDim.y) {
        float4 sum = make_float4(0, 0, 0, 0);
        for (u32 i = 0; i < bag; i++) {
            u32 id = (u32)ids[row * bag + i];
            if (id >= table_rows) continue;
            float4 v = load4_tail(table + (u64)id * width, at, width, 0.0f);
            sum = make_float4(sum.x + v.x, sum.y + v.y, sum.z + v.z, sum.w + v.w);
        }
        store4_tail(out + (u64)row * width, at, width, sum);
    }
}

#define INSTANCE(SUFFIX, T)                                                                        \
    KERNEL embedding_##SUFFIX(const int *ids, const T *table, u32 table_rows, float *out,          \
                              u32 rows, u32 bag, u32 width) {                                      \
        embed(ids, table, table_rows, out, rows, bag, width);                                      \
    }

INSTANCE(f32, float)
INSTANCE(f16, f16)
INSTANCE(bf16, bf16)
