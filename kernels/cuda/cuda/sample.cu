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

// What scores are divided by, and one over it.
struct Divisor {
    float value, inverse;
};

// A quotient, exactly rounded as a division's: two steps from one that is nearly so. It may be none
// or another where it is below any that counts, or too small to matter beside one.
DEVICE float quotient(float x, Divisor by) {
    if (by.value < 1e-18f) return x / by.value;
    float q = x * by.inverse;
    q = fmaf(fmaf(-by.value, q, x), by.inverse, q);
    return fmaf(fmaf(-by.value, q, x), by.inverse, q);
}

// A score's part of the sum; what is less than one is none, and so is what is no number.
DEVICE u32 weight_of(float x, float top, Divisor temperature) {
    float q = quotient(x - top, temperature);
    return q > -30.0f ? (u32)(exp_of(smaller(q, 0.0f)) * 2147483648.0f) : 0;
}

// The sum of this lane's number and those of the lanes before it.
DEVICE u64 sum_to_lane(u64 x, u32 lane) {
    for (u32 lanes = 1; lanes < 32; lanes *= 2) {
        u64 more = __shfl_up_sync(ALL_LANES, x, lanes);
        if (lane >= lanes) x += more;
    }
    return x;
}

// A block of 1024 threads has a row.
extern "C" __global__ void __launch_bounds__(1024)
    sample(const float *x, const int *how, const int *positions, u32 first, int *out, u32 rows,
           u32 width) {
    const u32 threads = 1024, warps = threads / 32;
    // Candidates that are listed, and of how many each adds up the others' weights.
    const u32 room = 2 * threads, few = 256;
    u32 row = blockIdx.x, thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
    if (row >= rows) return;
    x += (u64)row * width;
    how += (u64)row * 4;
    float temperature = __int_as_float(how[0]);
    u32 k = (u32)how[1];
    // How many are listed at first, how many the second time, and how many are chosen.
    __shared__ u32 nums[3];
    if (thread < 3) nums[thread] = 0;

    // The best of the thread's share, and of those the best and the worst.
    u64 own = 0;
    each_ahead<16>(x, thread, width, threads,
                   [&](float v, u32 at, bool) { own = higher(own, rank_of(v, at, 1)); });
    __shared__ u64 parts[2][warps];
    u64 best = warp_highest(own), worst = ~warp_highest(~own);
    if (lane == 0) {
        parts[0][warp] = best;
        parts[1][warp] = worst;
    }
    __syncthreads();
    best = warp_highest(parts[0][lane]);
    float top = score_of(best);

    bool is_finite = top > NEG_INF && top < -NEG_INF;
    // Rows of nobody may have any words.
    bool is_drawn = temperature > 0.0f && temperature <= 100.0f && k != 1 && k <= 1024;
    if (!is_drawn || !is_finite) {
        if (thread == 0) out[row] = (int)~(u32)best;
        return;
    }
    Divisor divisor = {temperature, 1.0f / temperature};
    // By one thread, while the others go on.
    __shared__ u64 random;
    if (thread == threads - 1) {
        u32 draw = first + (positions ? (u32)positions[row] : 0);
        random = random_of((u32)how[2], (u32)how[3], draw);
    }

    // `k` may be drawn: those at `least` or above.
    u64 least = 0;
    bool has_least = k > 0 && k < width;
    if (has_least) {
        // Of the best of `k` threads, so that as many of the row or more are at it or above.
        worst = ~warp_highest(~parts[1][lane]);
        least = bound_between(worst, best, k, k, [&](u64 bound) {
            return (u32)__syncthreads_count(own >= bound);
        });
        __shared__ u64 listed[room];
        u32 num = 0;
#pragma unroll 1
        for (u32 time = 0; time < 2; time++) {
            float score = score_of(least);
            // In any order: places in the list mean nothing.
            each_ahead<8>(x, thread, width, threads, [&](float v, u32 at, bool is_new) {
                if (v < score || !is_new) return;
                u64 rank = rank_of(v, at, 1);
                if (rank < least) return;
                u32 place = atomicAdd(&nums[time], 1u);
                if (place < room) listed[place] = rank;
            });
            __syncthreads();
            num = nums[time];
            if (num <= room) break;
            // Too many: counted in the row itself until they are not.
            u32 turn = 0;
            least = bound_between(least, best, k, room, [&](u64 bound) {
                float score = score_of(bound);
                u32 above = 0;
                each_ahead<8>(x, thread, width, threads, [&](float v, u32 at, bool is_new) {
                    if (is_new && !(v < score)) above += rank_of(v, at, 1) >= bound;
                });
                above = __reduce_add_sync(ALL_LANES, above);
                // In turns: one is read while the other is written.
                __shared__ u32 counts[2][warps];
                if (lane == 0) counts[turn % 2][warp] = above;
                __syncthreads();
                return __reduce_add_sync(ALL_LANES, counts[turn++ % 2][lane]);
            });
        }
        u64 some[2];
        for (u32 i = 0; i < 2; i++) {
            u32 at = i * threads + thread;
            some[i] = at < num ? listed[at] : 0;
        }
        if (num > k) {
            least = bound_between(least, best, k, k, [&](u64 bound) {
                u32 above = (u32)__syncthreads_count(some[0] >= bound);
                if (num > threads) above += (u32)__syncthreads_count(some[1] >= bound);
                return above;
            });
        }
        if (k <= few) {
            // Their weights, by index.
            __shared__ u64 chosen[few];
            for (u32 i = 0; i < 2; i++) {
                if (some[i] < least || some[i] == 0) continue;
                u32 weight = weight_of(score_of(some[i]), top, divisor);
                chosen[atomicAdd(&nums[2], 1u)] = (u64)~(u32)some[i] << 32 | weight;
            }
            __syncthreads();
            if (thread >= k) return;
            u64 mine = chosen[thread], before = 0, total = 0;
#pragma unroll 4
            for (u32 i = 0; i < k; i++) {
                u64 other = chosen[i];
                total += (u32)other;
                if (other < mine) before += (u32)other;
            }
            u64 left = __umul64hi(random, total);
            if (left >= before && left - before < (u32)mine) out[row] = (int)(mine >> 32);
            return;
        }
    }

    // Warps have runs of elements, then of the elements of the run that holds the draw.
    u32 from = 0, end = width, turn = 0;
    u64 left = 0;
    float score = score_of(least);
    auto weigh = [&](float v, u32 at) -> u32 {
        if (has_least && (v < score || rank_of(v, at, 1) < least)) return 0;
        return weight_of(v, top, divisor);
    };
#pragma unroll 1
    do {
        u32 run = (end - from + threads - 1) / threads * 32;
        u32 begin = min(end, from + warp * run);
        u32 stop = min(end, begin + run);
        u64 sum = 0;
        if (turn == 0) {
            each_ahead<4>(x, begin + lane, stop, 32,
                          [&](float v, u32 at, bool is_new) { sum += is_new ? weigh(v, at) : 0; });
        } else {
            each_ahead<1>(x, begin + lane, stop, 32,
                          [&](float v, u32 at, bool is_new) { sum += is_new ? weigh(v, at) : 0; });
        }
        for (u32 lanes = 16; lanes > 0; lanes /= 2) sum += __shfl_xor_sync(ALL_LANES, sum, lanes);
        // In turns: one is read while the other is written.
        __shared__ u64 sums[2][warps];
        if (lane == 0) sums[turn % 2][warp] = sum;
        __syncthreads();
        sum = sums[turn % 2][lane];
        u64 with = sum_to_lane(sum, lane);
        if (turn == 0) left = __umul64hi(random, __shfl_sync(ALL_LANES, with, 31));
        u32 holder = __ffs((int)__ballot_sync(ALL_LANES, left < with)) - 1;
        left -= __shfl_sync(ALL_LANES, with - sum, holder);
        from += holder * run;
        end = min(end, from + run);
        turn++;
    } while (end - from > 32);
    if (warp > 0) return;
    u32 at = from + lane;
    u32 weight = at < end ? weigh(x[at], at) : 0;
    u64 with = sum_to_lane(weight, lane);
    if (left < with && left >= with - weight) out[row] = (int)at;
}
