// The best of a row, and whether it is the end.

struct Best {
    float value;
    u32 at;
};

// The larger; of equals that with the lower index.
DEVICE Best better(Best a, Best b) {
    bool second = b.value > a.value || (b.value == a.value && b.at < a.at);
    return second ? b : a;
}

template <u32 THREADS> DEVICE void arg_max(const float *x, int *out, u32 rows, u32 width) {
    typedef Team<THREADS> T;
    u32 row = T::row();
    if (row >= rows) return;
    x += (u64)row * width;
    Best best = {NEG_INF, 0xffffffffu};
    for (u32 at = T::thread(); at < width; at += THREADS) {
        float v = x[at];
        if (v > best.value) best = {v, at};
    }
    for (u32 lanes = 16; lanes > 0; lanes /= 2) {
        Best other = {__shfl_xor_sync(ALL_LANES, best.value, lanes),
                      __shfl_xor_sync(ALL_LANES, best.at, lanes)};
        best = better(best, other);
    }
    if (THREADS > 32) {
        __shared__ Best parts[THREADS / 32];
        if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = best;
        __syncthreads();
        best = parts[0];
        for (u32 i = 1; i < THREADS / 32; i++) best = better(best, parts[i]);
    }
    // No element compares as larger than a first one that is no number.
    if (T::thread() == 0) out[row] = best.at == 0xffffffffu || x[0] != x[0] ? 0 : (int)best.at;
}

KERNEL arg_max_warp(const float *x, int *out, u32 rows, u32 width) {
    arg_max<32>(x, out, rows, width);
}
KERNEL arg_max_block(const float *x, int *out, u32 rows, u32 width) {
    arg_max<256>(x, out, rows, width);
}

// Where the flags go changes from launch to launch, so it is in a table.
KERNEL stop_flags(const int *ids, int token, u8 *const *table, u32 num) {
    u8 *flags = *table;
    EACH_ITEM(i, num) flags[i] = ids[i] == token;
}
