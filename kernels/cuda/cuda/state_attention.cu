// Attention over paged sequence states. Keys come in splits of 128 from the first on. Within a
// split the softmax is taken at once; splits are joined in order, by one block or by a second
// launch, with the same arithmetic.

#define PAGE 16
#define SPLIT 128
#define THREADS 128
// Query heads of one key head that share what is loaded.
#define TOGETHER 4
// Rounds of values that are on their way at once.
#define VALUES_AHEAD 8

struct Pages {
    const float *pool;
    const int *pages;
    u32 width;

    // The row at a position.
    __device__ __forceinline__ const float *row(u32 position) const {
        return pool + ((u64)(u32)pages[position / PAGE] * PAGE + position % PAGE) * width;
    }
};

// Weights of the keys so far: their maximum and their sum.
struct Share {
    float top, total;
};

// How sums so far shrink when a split is added to them, and how the split's own do.
struct Factors {
    float old, fresh;
};

DEVICE Factors join(Share &all, Share split) {
    float top = larger(split.top, all.top);
    Factors f = {all.top == top ? 1.0f : exp_of(all.top - top),
                 split.top == top ? 1.0f : exp_of(split.top - top)};
    all.total = all.total * f.old + split.total * f.fresh;
    all.top = top;
    return f;
}

// Turns a split's scores into weights; those behind the end become zero. One warp.
DEVICE Share weigh(float *scores, u32 num) {
    u32 lane = threadIdx.x % 32;
    float top = NEG_INF, total = 0;
    for (u32 i = lane; i < SPLIT; i += 32)
        if (i < num) top = larger(scores[i], top);
    top = warp_max(top);
    for (u32 i = lane; i < SPLIT; i += 32) {
        float w = i < num ? exp_of(scores[i] - top) : 0.0f;
        scores[i] = w;
        total += w;
    }
    return {top, warp_sum(total)};
}

// `DIM` is the most features of a head. Blocks: row, key head, split; of one split if there is a
// workspace, else of all.
template <u32 DIM>
DEVICE void state_attention(const float *q, Pages keys, Pages values, u32 len, float *out,
                            float *workspace, u32 heads, u32 kv_heads, u32 dim, float scale) {
    // Rounds of keys that are on their way at once.
    const u32 CHUNKS = DIM / 32, KEYS_AHEAD = DIM > 256 ? 1 : DIM > 128 ? 2 : 4;
    __shared__ __align__(16) float query[TOGETHER][DIM];
    __shared__ float scores[TOGETHER][SPLIT];
    __shared__ Share shares[TOGETHER];
    __shared__ __align__(16) float4 partial[THREADS];

    u32 row = blockIdx.x, kv_head = blockIdx.y, group = heads / kv_heads;
    u32 warp = threadIdx.x / 32;
    u32 splits = (len + SPLIT - 1) / SPLIT;
    u32 first = workspace ? blockIdx.z : 0, end = workspace ? first + 1 : splits;
    if (workspace && first >= splits) return;

    // For scores eight lanes share a key; for sums `across` threads share a row of values, and
    // `parts` rows are taken at once.
    u32 lane = threadIdx.x % 8, quads = (dim + 3) / 4;
    u32 across = quads, parts = THREADS / across;
    u32 own_quad = threadIdx.x % across, own_part = threadIdx.x / across;

    for (u32 head0 = 0; head0 < group; head0 += TOGETHER) {
        u32 num_heads = group - head0 < TOGETHER ? group - head0 : TOGETHER;
        u64 q_at = (u64)row * heads * dim + (kv_head * group + head0) * dim;
        __syncthreads();
        for (u32 i = threadIdx.x; i < TOGETHER * 4 * quads; i += THREADS) {
            u32 head = i / (4 * quads), at = i % (4 * quads);
            bool is_there = head < num_heads && at < dim;
            query[head][at] = is_there ? q[q_at + head * dim + at] : 0.0f;
        }
        // Sums over all splits, in the first `across` threads.
        float4 sum[TOGETHER];
        Share all[TOGETHER];
#pragma unroll
        for (u32 h = 0; h < TOGETHER; h++) {
            sum[h] = make_float4(0, 0, 0, 0);
            all[h] = {NEG_INF, 0.0f};
        }
        for (u32 split = first; split < end; split++) {
            u32 start = split * SPLIT, num = len - start < SPLIT ? len - start : SPLIT;
            __syncthreads();
            for (u32 j0 = 0; j0 < num; j0 += KEYS_AHEAD * (THREADS / 8)) {
                // Lanes behind the end look at the last key, so that all take part in the sums.
                float4 ahead[KEYS_AHEAD][CHUNKS];
#pragma unroll
                for (u32 i = 0; i < KEYS_AHEAD; i++) {
                    u32 j = j0 + i * (THREADS / 8) + threadIdx.x / 8;
                    const float *key = keys.row(start + (j < num ? j : num - 1)) + kv_head * dim;
#pragma unroll
                    for (u32 c = 0; c < CHUNKS; c++) {
                        u32 quad = 8 * c + lane;
                        if (quad < quads) ahead[i][c] = load4_tail(key, 4 * quad, dim, 0.0f);
                    }
                }
#pragma unroll
                for (u32 i = 0; i < KEYS_AHEAD; i++) {
                    u32 j = j0 + i * (THREADS / 8) + threadIdx.x / 8;
                    float dot[TOGETHER] = {};
#pragma unroll
                    for (u32 c = 0; c < CHUNKS; c++) {
                        u32 quad = 8 * c + lane;
                        if (quad >= quads) continue;
                        float4 k = ahead[i][c];
#pragma unroll
                        for (u32 h = 0; h < TOGETHER; h++) {
                            float4 v = *(const float4 *)&query[h][4 * quad];
                            dot[h] = fmaf(v.x, k.x, dot[h]);
                            dot[h] = fmaf(v.y, k.y, dot[h]);
                            dot[h] = fmaf(v.z, k.z, dot[h]);
                            dot[h] = fmaf(v.w, k.w, dot[h]);
                        }
                    }
#pragma unroll
                    for (u32 h = 0; h < TOGETHER; h++) {
                        for (u32 lanes = 4; lanes > 0; lanes /= 2)
                            dot[h] += __shfl_xor_sync(ALL_LANES, dot[h], lanes);
                        if (lane == 0 && j < num) scores[h][j] = dot[h] * scale;
                    }
                }
            }
            __syncthreads();
            if (warp < num_heads) {
                Share share = weigh(scores[warp], num);
                if (threadIdx.x % 32 == 0) shares[warp] = share;
            }
            __syncthreads();
            float4 own[TOGETHER];
#pragma unroll
            for (u32 h = 0; h < TOGETHER; h++) own[h] = make_float4(0, 0, 0, 0);
            if (own_part < parts) {
                for (u32 j0 = own_part; j0 < num; j0 += VALUES_AHEAD * parts) {
                    float4 ahead[VALUES_AHEAD];
#pragma unroll
                    for (u32 i = 0; i < VALUES_AHEAD; i++) {
                        u32 j = j0 + i * parts;
                        if (j >= num) continue;
                        const float *value = values.row(start + j) + kv_head * dim;
                        ahead[i] = load4_tail(value, 4 * own_quad, dim, 0.0f);
                    }
#pragma unroll
                    for (u32 i = 0; i < VALUES_AHEAD; i++) {
                        u32 j = j0 + i * parts;
                        if (j >= num) continue;
                        float4 v = ahead[i];
#pragma unroll
                        for (u32 h = 0; h < TOGETHER; h++) {
                            if (h >= num_heads) continue;
                            float w = scores[h][j];
                            own[h].x = fmaf(w, v.x, own[h].x);
                            own[h].y = fmaf(w, v.y, own[h].y);
                            own[h].z = fmaf(w, v.z, own[h].z);
                            own[h].w = fmaf(w, v.w, own[h].w);
                        }
                    }
                }
            }
#pragma unroll
            for (u32 h = 0; h < TOGETHER; h++) {
                if (h >= num_heads) continue;
                partial[threadIdx.x] = own[h];
                __syncthreads();
                Factors f = join(all[h], shares[h]);
                if (threadIdx.x < across) {
                    float4 s = partial[threadIdx.x];
                    for (u32 p = 1; p < parts; p++) {
                        float4 more = partial[p * across + threadIdx.x];
                        s = make_float4(s.x + more.x, s.y + more.y, s.z + more.z, s.w + more.w);
                    }
                    sum[h].x = sum[h].x * f.old + s.x * f.fresh;
                    sum[h].y = sum[h].y * f.old + s.y * f.fresh;
                    sum[h].z = sum[h].z * f.old + s.z * f.fresh;
                    sum[h].w = sum[h].w * f.old + s.w * f.fresh;
                }
                __syncthreads();
            }
        }
        if (threadIdx.x < across) {
#pragma unroll
            for (u32 h = 0; h < TOGETHER; h++) {
                if (h >= num_heads) continue;
                u32 head = kv_head * group + head0 + h;
                if (workspace) {
                    u64 place = ((u64)row * heads + head) * gridDim.z + blockIdx.z;
                    float *to = workspace + place * (dim + 2);
                    if (threadIdx.x == 0) {
                        to[0] = all[h].top;
                        to[1] = all[h].total;
                    }
                    store4_tail(to + 2, 4 * threadIdx.x, dim, sum[h]);
                } else {
                    float total = all[h].total;
                    float4 v = make_float4(sum[h].x / total, sum[h].y / total, sum[h].z / total,
                                           sum[h].w / total);
                    if (len == 0) v = make_float4(0, 0, 0, 0);
                    store4_tail(out + q_at + h * dim, 4 * threadIdx.x, dim, v);
                }
            }
        }
    }
}

#define INSTANCE(DIM)                                                                              \
    extern "C" __global__ void __launch_bounds__(THREADS, 1) state_attention_##DIM(                \
        const float *q, const float *keys, const int *key_pages, u32 key_stride,                   \
        const float *values, const int *value_pages, u32 value_stride, const int *sequences,       \
        const int *lens, float *out, float *workspace, u32 heads, u32 kv_heads, u32 dim,           \
        float scale) {                                                                             \
        u32 sequence = sequences ? (u32)sequences[blockIdx.x] : blockIdx.x;                        \
        Pages k = {keys, key_pages + (u64)sequence * key_stride, kv_heads * dim};                  \
        Pages v = {values, value_pages + (u64)sequence * value_stride, kv_heads * dim};            \
        state_attention<DIM>(q, k, v, (u32)lens[sequence], out, workspace, heads, kv_heads, dim,   \
                             scale);                                                               \
    }

INSTANCE(32)
INSTANCE(64)
INSTANCE(128)
INSTANCE(256)
INSTANCE(512)

// Joins the splits of each row and head.
KERNEL join_splits(const float *workspace, const int *sequences, const int *lens, float *out,
                   u32 dim, u32 max_splits) {
    u32 row = blockIdx.x, head = blockIdx.y, at = threadIdx.x;
    if (at >= dim) return;
    u32 len = (u32)lens[sequences ? (u32)sequences[row] : row];
    u64 place = (u64)row * gridDim.y + head;
    Share all = {NEG_INF, 0.0f};
    float sum = 0;
    for (u32 split = 0; split < (len + SPLIT - 1) / SPLIT; split++) {
        const float *from = workspace + (place * max_splits + split) * (dim + 2);
        Factors f = join(all, {from[0], from[1]});
        sum = sum * f.old + from[2 + at] * f.fresh;
    }
    out[place * dim + at] = len == 0 ? 0.0f : sum / all.total;
}

// Additive attention of one row. Its sums lie in dynamic shared memory, `width` of them.
KERNEL additive_attention(const float *q, const float *w, const float *keys, const int *key_pages,
                          u32 key_stride, u32 d, const float *values, const int *value_pages,
                          u32 value_stride, u32 width, const int *sequences, const int *lens,
                          float *out) {
    extern __shared__ float sums[];
    __shared__ float scores[SPLIT];
    u32 sequence = sequences ? (u32)sequences[blockIdx.x] : blockIdx.x;
    u32 len = (u32)lens[sequence], warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    Pages k = {keys, key_pages + (u64)sequence * key_stride, d};
    Pages v = {values, value_pages + (u64)sequence * value_stride, width};
    const float *query = q + (u64)blockIdx.x * d;
    for (u32 i = threadIdx.x; i < width; i += THREADS) sums[i] = 0;
    Share all = {NEG_INF, 0.0f};
    for (u32 start = 0; start < len; start += SPLIT) {
        u32 num = len - start < SPLIT ? len - start : SPLIT;
        __syncthreads();
        for (u32 j = warp; j < num; j += THREADS / 32) {
            const float *key = k.row(start + j);
            float dot = 0;
            for (u32 i = lane; i < d; i += 32) dot = fmaf(w[i], tanh_of(query[i] + key[i]), dot);
            dot = warp_sum(dot);
            if (lane == 0) scores[j] = dot;
        }
        __syncthreads();
        __shared__ Share share;
        if (warp == 0) {
            Share s = weigh(scores, num);
            if (lane == 0) share = s;
        }
        __syncthreads();
        Factors f = join(all, share);
        for (u32 i = threadIdx.x; i < width; i += THREADS) {
            float sum = 0;
            for (u32 j = 0; j < num; j++) sum = fmaf(scores[j], v.row(start + j)[i], sum);
            sums[i] = sums[i] * f.old + sum * f.fresh;
        }
    }
    float *to = out + (u64)blockIdx.x * width;
    for (u32 i = threadIdx.x; i < width; i += THREADS)
        to[i] = len == 0 ? 0.0f : sums[i] / all.total;
}
