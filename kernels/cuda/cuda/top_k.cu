// The first elements of a row in order. What is taken depends on the row alone.
//
// A block lists the candidates and counts for each how many are before it. Without room for them,
// and in a warp, each thread keeps the best of its share that was not taken yet, and looks for
// another when its own is taken.

// The highest below `limit` in a thread's share, or zero.
template <u32 THREADS>
DEVICE u64 next_rank(const float *x, u32 width, u32 largest, u64 limit) {
    u64 best = 0;
    each_ahead<8>(x, Team<THREADS>::thread(), width, THREADS, [&](float v, u32 at, bool) {
        u64 rank = rank_of(v, at, largest);
        if (rank < limit) best = higher(best, rank);
    });
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

// Whether there is room for the candidates of a row; if so, its first `k` are written.
DEVICE bool top_k_listed(const float *x, float *values, int *ids, u32 width, u32 k, u32 largest) {
    const u32 threads = 256, room = 4 * threads;
    u32 thread = threadIdx.x;
    if (k > threads) return false;
    __shared__ u64 listed[room];
    __shared__ u32 num_listed;
    if (thread == 0) num_listed = 0;
    u64 own = next_rank<threads>(x, width, largest, ~0ull);
    // Of the best of `k` threads, so that as many of the row or more are at it or above.
    auto count = [&](u64 bound) { return (u32)__syncthreads_count(own >= bound); };
    u64 least = bound_between(0, ~0ull, k, k, count);
    float score = score_of(least);
    // In any order: places in the list mean nothing.
    each_ahead<8>(x, thread, width, threads, [&](float v, u32 at, bool is_new) {
        if ((largest ? v : -v) < score || !is_new) return;
        u64 rank = rank_of(v, at, largest);
        if (rank < least) return;
        u32 place = atomicAdd(&num_listed, 1u);
        if (place < room) listed[place] = rank;
    });
    __syncthreads();
    u32 num = num_listed;
    if (num > room) return false;
#pragma unroll 1
    for (u32 i = thread; i < num; i += threads) {
        u64 rank = listed[i];
        u32 before = 0;
#pragma unroll 4
        for (u32 j = 0; j < num; j++) before += listed[j] > rank;
        if (before >= k) continue;
        u32 at = ~(u32)rank;
        values[before] = x[at];
        ids[before] = (int)at;
    }
    return true;
}

KERNEL top_k_warp(const float *x, float *values, int *ids, u32 rows, u32 width, u32 k,
                  u32 largest) {
    top_k<32>(x, values, ids, rows, width, k, largest);
}
KERNEL top_k_block(const float *x, float *values, int *ids, u32 rows, u32 width, u32 k,
                   u32 largest) {
    u64 row = blockIdx.x;
    if (row >= rows) return;
    if (top_k_listed(x + row * width, values + row * k, ids + row * k, width, k, largest)) return;
    top_k<256>(x, values, ids, rows, width, k, largest);
}
