// Pairwise dot products: one warp for each pair of a row.

KERNEL interaction(const float *x, float *out, u32 vectors, u32 dim, u32 pairs) {
    const float *row = x + (u64)blockIdx.y * vectors * dim;
    u32 lane = threadIdx.x % 32;
    for (u32 n = 0; n < 2; n++) {
        u32 pair = blockIdx.x * 8 + threadIdx.x / 32 * 2 + n;
        if (pair >= pairs) return;
        // The first of row `i` of the triangle is pair `i (i - 1) / 2`.
        u32 i = (u32)((1.0f + sqrtf(1.0f + 8.0f * (float)pair)) * 0.5f);
        while (i * (i - 1) / 2 > pair) i--;
        while (i * (i + 1) / 2 <= pair) i++;
        u32 j = pair - i * (i - 1) / 2;
        float sum = 0;
        for (u32 e = lane; e < dim; e += 32) sum = fmaf(row[i * dim + e], row[j * dim + e], sum);
        sum = warp_sum(sum);
        if (lane == 0) out[(u64)blockIdx.y * pairs + pair] = sum;
    }
}
