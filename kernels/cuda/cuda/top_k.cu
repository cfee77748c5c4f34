// The first elements of a row in order: each thread keeps the best of its share that was not taken
// yet, and looks for another when its own is taken. What is taken depends on the row alone.

// The highest below `limit` in a thread's share, or zero.
template <u32 THREADS>
DEVICE u64 next_rank(const float *x, u32 width, u32 largest, u64 limit) {
    u64 best = 0;
    for (u32 at = Team<THREADS>::thread(); at < width; at += THREADS) {
        u64 rank = rank_of(x[at], at, largest);
        if (rank < limit) best = higher(best, rank);
    }
    return best;
}

template <u32 THREADS>
DEVICE void top_k(const float *x, float *values, int *ids, u32 rows, u32 width, u32 k,
                  u32 largest) {
    u32 row = Team<THREADS>::row();
    if (row >= rows) return;
    x += (u64)row * width;
    values += (u64)row * k;
    ids += (u64)row * k;
    u64 own = next_rank<THREADS>(x, width, largest, ~0ull);
#pragma unroll 1
    for (u32 i = 0; i < k; i++) {
        u64 best = own;
        for (u32 lanes = 16; lanes > 0; lanes /= 2)
            best = higher(best, __shfl_xor_sync(ALL_LANES, best, lanes));
        if (THREADS > 32) {
            // In turns: one is read while the other is written.
            __shared__ u64 parts[2][THREADS / 32];
            if (threadIdx.x % 32 == 0) parts[i % 2][threadIdx.x / 32] = best;
            __syncthreads();
            for (u32 j = 0; j < THREADS / 32; j++) best = higher(best, parts[i % 2][j]);
        }
        if (best != own) continue;
        u32 at = ~(u32)best;
        values[i] = x[at];
        ids[i] = (int)at;
        own = next_rank<THREADS>(x, width, largest, best);
    }
}

KERNEL top_k_warp(const float *x, float *values, int *ids, u32 rows, u32 width, u32 k,
                  u32 largest) {
    top_k<32>(x, values, ids, rows, width, k, largest);
}
KERNEL top_k_block(const float *x, float *values, int *ids, u32 rows, u32 width, u32 k,
                   u32 largest) {
    top_k<256>(x, values, ids, rows, width, k, largest);
}
