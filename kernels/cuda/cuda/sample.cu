// A token of each row of scores, drawn by its share of the softmax: `lazybatch_graph::Op::Sample`.
// Weights are whole numbers, so that the order of their sum does not matter.

// The random number `draw` of a seed; `lazybatch_graph::sampling` names the source.
DEVICE u64 random_of(u32 low, u32 high, u32 draw) {
    u32 c0 = draw, c1 = 0, c2 = 0, c3 = 0;
#pragma unroll 1
    for (u32 i = 0; i < 10; i++) {
        u64 a = (u64)c0 * 0xd2511f53u, b = (u64)c2 * 0xcd9e8d57u;
        c0 = (u32)(b >> 32) ^ c1 ^ low;
        c1 = (u32)b;
        c2 = (u32)(a >> 32) ^ c3 ^ high;
        c3 = (u32)a;
        low += 0x9e3779b9u;
        high += 0xbb67ae85u;
    }
    return (u64)c1 << 32 | c0;
}

// A score's part of the sum; what is less than one is none, and so is what is no number.
DEVICE u32 weight_of(float x, float top, float temperature) {
    float q = (x - top) / temperature;
    return q > -30.0f ? (u32)(exp_of(smaller(q, 0.0f)) * 2147483648.0f) : 0;
}

// A block of 1024 threads has a row.
extern "C" __global__ void __launch_bounds__(1024)
    sample(const float *x, const int *how, const int *positions, u32 first, int *out, u32 rows,
           u32 width) {
    const u32 threads = 1024, warps = threads / 32;
    u32 row = blockIdx.x, thread = threadIdx.x;
    if (row >= rows) return;
    x += (u64)row * width;
    how += (u64)row * 4;

    u64 best = 0;
#pragma unroll 4
    for (u32 at = thread; at < width; at += threads) best = higher(best, rank_of(x[at], at, 1));
    for (u32 lanes = 16; lanes > 0; lanes /= 2)
        best = higher(best, __shfl_xor_sync(ALL_LANES, best, lanes));
    __shared__ u64 parts[warps];
    if (thread % 32 == 0) parts[thread / 32] = best;
    __syncthreads();
    for (u32 i = 0; i < warps; i++) best = higher(best, parts[i]);
    u32 likeliest = ~(u32)best;
    float top = x[likeliest];

    float temperature = __int_as_float(how[0]);
    u32 k = (u32)how[1];
    bool is_finite = top > NEG_INF && top < -NEG_INF;
    // Rows of nobody may have any words.
    bool is_drawn = temperature > 0.0f && temperature <= 100.0f && k != 1 && k <= 1024;
    if (!is_drawn || !is_finite) {
        if (thread == 0) out[row] = (int)likeliest;
        return;
    }

    // The rank of the last one that may be drawn, bit by bit: so many are at it or above.
    u64 least = 0;
    if (k > 0 && k < width) {
#pragma unroll 1
        for (u32 i = 0; i < 64; i++) {
            u64 next = least | 1ull << (63 - i);
            u32 num = 0;
#pragma unroll 4
            for (u32 at = thread; at < width; at += threads) num += rank_of(x[at], at, 1) >= next;
            for (u32 lanes = 16; lanes > 0; lanes /= 2)
                num += __shfl_xor_sync(ALL_LANES, num, lanes);
            // In turns: one is read while the other is written.
            __shared__ u32 counts[2][warps];
            if (thread % 32 == 0) counts[i % 2][thread / 32] = num;
            __syncthreads();
            num = counts[i % 2][thread % warps];
            for (u32 lanes = 16; lanes > 0; lanes /= 2)
                num += __shfl_xor_sync(ALL_LANES, num, lanes);
            if (num >= k) least = next;
            if (num == k) break;
        }
    }

    // Threads have runs of elements, so that sums before a thread are sums before its elements.
    u32 share = (width + threads - 1) / threads;
    u32 from = min(width, thread * share), to = min(width, from + share);
    u64 own = 0;
    for (u32 at = from; at < to; at++)
        if (rank_of(x[at], at, 1) >= least) own += weight_of(x[at], top, temperature);
    // What the lanes before this one have, then what the warps before this one have.
    u64 with_own = own;
    for (u32 lanes = 1; lanes < 32; lanes *= 2) {
        u64 more = __shfl_up_sync(ALL_LANES, with_own, lanes);
        if (thread % 32 >= lanes) with_own += more;
    }
    __shared__ u64 sums[warps];
    if (thread % 32 == 31) sums[thread / 32] = with_own;
    __syncthreads();
    u64 before = with_own - own, total = 0;
    for (u32 i = 0; i < warps; i++) {
        if (i == thread / 32) before += total;
        total += sums[i];
    }
    u32 draw = first + (positions ? (u32)positions[row] : 0);
    u64 left = __umul64hi(random_of((u32)how[2], (u32)how[3], draw), total);
    if (left < before || left >= before + own) return;
    left -= before;
    for (u32 at = from; at < to; at++) {
        if (rank_of(x[at], at, 1) < least) continue;
        u32 weight = weight_of(x[at], top, temperature);
        if (left < weight) {
            out[row] = (int)at;
            return;
        }
        left -= weight;
    }
}
