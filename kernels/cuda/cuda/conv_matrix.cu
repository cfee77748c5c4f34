// Convolution by matrix instructions, NCHW: for each group the product of filters, f16 or bf16,
// with windows of f32 that are gathered as they are needed and rounded to the type of the filters;
// sums are f32.
//
// A chain goes in tiles of 32 steps, two instructions each, and is cut into slices of as many tiles
// as the node alone says. The sum of a slice begins with zero and takes its tiles in order; an
// element is the sum of its slices in order. So it has the same bits in whatever tile of outputs,
// and from whatever tiling, it comes.
//
// Filters come as the launcher arranges them: for each group, 16 filters, and 16 steps, what the 32
// lanes of a warp hold of the left side of an instruction, 16 bytes each.

struct Shape : ConvShape {
    // Tiles of a chain and of a slice, and the slices that warps beside each other have.
    u32 tiles, slice, slices;
};

#define STEPS 32

// How windows are gathered. `CHANNELS`: a tile has 32 channels of one element of the window.
// `POINTS`: so it has, and the window is one element, without stride and padding, so that windows
// are a matrix of channels and pixels, whose rows are read by 16 bytes. `ANY`: a chain goes by
// channel, then element.
enum Windows { ANY, CHANNELS, POINTS };

// Words of a row in shared memory, and 16 bytes behind them, so that eight rows lie in different
// banks: a row has the steps of one pixel, or, of `POINTS`, the pixels of one step.
template <Windows HOW, u32 PIXELS> struct Rows {
    static const u32 WORDS = (HOW == POINTS ? PIXELS : STEPS) / 2 + 4;
    static const u32 ALL = WORDS * (HOW == POINTS ? STEPS : PIXELS);
};

// Four matrices of 8 x 8 numbers in shared memory, or these turned; eight lanes each say where
// their rows are.
template <bool TURNED> DEVICE void load_four(const u32 *row, u32 (&b)[4]) {
    u32 at = (u32)__cvta_generic_to_shared(row);
    if (TURNED)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3])
                     : "r"(at)
                     : "memory");
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3])
                     : "r"(at)
                     : "memory");
}

// What `THREADS` gather for a tile of `PIXELS`, and which part of it one of them does: `NUM` steps
// of one pixel, from step `first` on, the same ones in all threads of a warp; or, of `POINTS`, four
// pixels of every `EVERY`th step.
template <class H, Windows HOW, u32 PIXELS, u32 THREADS> struct Gather {
    static const u32 NUM = STEPS * PIXELS / THREADS, EVERY = 4 * THREADS / PIXELS;
    static const u32 WORDS = Rows<HOW, PIXELS>::WORDS;
    // Where it goes, and the steps.
    u32 word, first;
    // The first element of the group in the pixel's image, and the window's first element there;
    // the padding wraps to large numbers.
    const float *image;
    u32 y0, x0;
    bool is_there;
    // Of the next tile; of `ANY` of the next tile's step that has this lane's number, and how far
    // 32 steps are.
    u32 c, ky, kx, next_c, next_y, next_x;
    // What was gathered last, and whether it is of the image.
    float values[NUM];
    u32 keep;

    // Of thread `me`, for pixels from `pixel` on and tiles from `tile` on.
    DEVICE void start(const float *x, const Shape &s, u32 me, u32 pixel, u32 tile) {
        u32 plane = s.out[0] * s.out[1], area = s.kernel[0] * s.kernel[1];
        if (HOW == POINTS) {
            first = me / (PIXELS / 4);
            word = first * WORDS + me % (PIXELS / 4) * 2;
            pixel += me % (PIXELS / 4) * 4;
        } else {
            first = me / PIXELS * NUM;
            word = me % PIXELS * WORDS + first / 2;
            pixel += me % PIXELS;
        }
        is_there = pixel < s.rows * plane;
        if (!is_there) pixel = 0;
        u32 channel = pixel / plane * s.channels + blockIdx.z * (s.channels / s.groups);
        u32 place = pixel % plane;
        image = x + (u64)channel * s.size[0] * s.size[1];
        if (HOW == POINTS) {
            image += (u64)(tile * STEPS + first) * plane + place;
            return;
        }
        y0 = place / s.out[1] * s.stride[0] - s.pad[0];
        x0 = place % s.out[1] * s.stride[1] - s.pad[1];
        u32 element;
        if (HOW == CHANNELS) {
            c = tile / area * STEPS;
            element = tile % area;
        } else {
            u32 k = tile * STEPS + first + threadIdx.x % 32 % NUM;
            c = k / area;
            element = k % area;
            next_c = STEPS / area;
            next_y = STEPS % area / s.kernel[1];
            next_x = STEPS % area % s.kernel[1];
        }
        ky = element / s.kernel[1];
        kx = element % s.kernel[1];
    }

    // Asks for the next tile.
    DEVICE void ask(const Shape &s) {
        u32 plane = s.size[0] * s.size[1];
        if (HOW == POINTS) {
            // Pixels that are not there are never kept.
#pragma unroll
            for (u32 i = 0; i < NUM / 4; i++) {
                float4 v = *(const float4 *)(image + i * EVERY * plane);
                values[4 * i] = v.x;
                values[4 * i + 1] = v.y;
                values[4 * i + 2] = v.z;
                values[4 * i + 3] = v.w;
            }
            image += STEPS * plane;
            return;
        }
        if (HOW == CHANNELS) {
            u32 y = y0 + ky, at = x0 + kx;
            bool is_in = is_there && y < s.size[0] && at < s.size[1];
            const float *from = image + (is_in ? (c + first) * plane + y * s.size[1] + at : 0);
            keep = is_in ? 0xffffffffu : 0;
#pragma unroll
            for (u32 i = 0; i < NUM; i++) values[i] = from[i * plane];
            if (++kx < s.kernel[1]) return;
            kx = 0;
            if (++ky < s.kernel[0]) return;
            ky = 0;
            c += STEPS;
            return;
        }
        const u32 none = 0xffffffffu;
        u32 per = s.channels / s.groups;
        u32 offset = c < per ? c * plane + ky * s.size[1] + kx : none, corner = y0 * s.size[1] + x0;
#pragma unroll
        for (u32 i = 0; i < NUM; i++) {
            u32 to = __shfl_sync(ALL_LANES, offset, i);
            u32 y = y0 + __shfl_sync(ALL_LANES, ky, i), at = x0 + __shfl_sync(ALL_LANES, kx, i);
            bool is_in = is_there && to != none && y < s.size[0] && at < s.size[1];
            values[i] = is_in ? image[corner + to] : 0.0f;
        }
        kx += next_x;
        ky += next_y;
        c += next_c;
        if (kx >= s.kernel[1]) {
            kx -= s.kernel[1];
            ky++;
        }
        if (ky >= s.kernel[0]) {
            ky -= s.kernel[0];
            c++;
        }
    }

    // Rounds what was asked for, and puts it into the tile.
    DEVICE void put(u32 *tile) const {
        u32 two[NUM / 2];
#pragma unroll
        for (u32 i = 0; i < NUM / 2; i++) {
            two[i] = pair(H{}, values[2 * i], values[2 * i + 1]);
            if (HOW == CHANNELS) two[i] &= keep;
        }
        u32 *to = tile + word;
        if (HOW == POINTS) {
#pragma unroll
            for (u32 i = 0; i < NUM / 4; i++)
                *(uint2 *)(to + i * EVERY * WORDS) = make_uint2(two[2 * i], two[2 * i + 1]);
        } else {
#pragma unroll
            for (u32 i = 0; i < NUM / 2; i += 4)
                *(uint4 *)(to + i) = make_uint4(two[i], two[i + 1], two[i + 2], two[i + 3]);
        }
    }
};

// Half a tile, 16 steps: `M` times 16 filters by 32 pixels of the tile, from `pixel` on.
template <class H, Windows HOW, u32 PIXELS, u32 M>
DEVICE void multiply_half(float (&sum)[M][4][4], const u32 *tile, u32 pixel, u32 half,
                          const uint4 (&left)[M]) {
    const u32 WORDS = Rows<HOW, PIXELS>::WORDS;
    u32 lane = threadIdx.x % 32;
    u32 b[2][4];
#pragma unroll
    for (u32 n = 0; n < 2; n++) {
        u32 beside = pixel + 16 * n + lane / 16 * 8, steps = 8 * half + lane / 8 % 2 * 4;
        if (HOW == POINTS)
            load_four<true>(tile + (16 * half + lane % 16) * WORDS + beside / 2, b[n]);
        else
            load_four<false>(tile + (beside + lane % 8) * WORDS + steps, b[n]);
    }
#pragma unroll
    for (u32 m = 0; m < M; m++) {
        u32 a[4] = {left[m].x, left[m].y, left[m].z, left[m].w};
#pragma unroll
        for (u32 n = 0; n < 4; n++)
            multiply(H{}, sum[m][n], a, b[n / 2][n % 2 * 2], b[n / 2][n % 2 * 2 + 1]);
    }
}

template <u32 M> DEVICE void clear(float (&sum)[M][4][4]) {
#pragma unroll
    for (u32 e = 0; e < M * 16; e++) sum[e / 16][e / 4 % 4][e % 4] = 0;
}

// Tiles of 16 filters that a group has.
DEVICE u32 filter_tiles(const Shape &s) { return (s.filters / s.groups + 15) / 16; }

// `FILTERS` of a group and `PIXELS` in a block, 32 x 32 in each warp, which takes all slices one
// after another. The filters of some tiles are on their way at once; the windows of the next are in
// registers.
template <class H, u32 FILTERS, u32 PIXELS, Windows HOW> struct Tiles {
    static const u32 THREADS = FILTERS * PIXELS / 32, STAGES = 4, BESIDE = PIXELS / 32;
    // Pieces of 16 bytes in a tile of filters, and of a thread.
    static const u32 PIECES = FILTERS / 16 * 64, OWN = PIECES / THREADS;
    static_assert(OWN * THREADS == PIECES, "whole pieces");

    static __device__ __forceinline__ void run(const float *x, const uint4 *weights,
                                               const float *bias, const float *residual, float *out,
                                               const Shape &s) {
        __shared__ uint4 left[STAGES][PIECES];
        __shared__ __align__(16) u32 right[2][Rows<HOW, PIXELS>::ALL];
        u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        u32 below = warp / BESIDE, beside = warp % BESIDE;

        const uint4 *from[OWN];
#pragma unroll
        for (u32 i = 0; i < OWN; i++) {
            u32 piece = threadIdx.x + i * THREADS, all = filter_tiles(s);
            u32 tile = blockIdx.y * (FILTERS / 16) + piece / 64;
            // Those behind the last are not kept.
            tile = blockIdx.z * all + (tile < all ? tile : all - 1);
            from[i] = weights + (u64)tile * s.tiles * 64 + piece % 64;
        }
        auto fetch = [&](u32 stage) {
#pragma unroll
            for (u32 i = 0; i < OWN; i++) {
                copy_async(&left[stage][threadIdx.x + i * THREADS], from[i]);
                from[i] += 64;
            }
        };
#pragma unroll 1
        for (u32 t = 0; t < STAGES - 1; t++) {
            if (t < s.tiles) fetch(t);
            commit_copies();
        }
        Gather<H, HOW, PIXELS, THREADS> gather;
        gather.start(x, s, threadIdx.x, blockIdx.x * PIXELS, 0);
        gather.ask(s);

        float sum[2][4][4], total[2][4][4];
        clear(sum);
        clear(total);
        u32 to_go = s.slice;
#pragma unroll 1
        for (u32 t = 0; t < s.tiles; t++) {
            u32 *tile = right[t % 2];
            gather.put(tile);
            wait_copies<STAGES - 2>();
            __syncthreads();
            if (t + STAGES - 1 < s.tiles) fetch((t + STAGES - 1) % STAGES);
            commit_copies();
            if (t + 1 < s.tiles) gather.ask(s);
#pragma unroll
            for (u32 half = 0; half < 2; half++) {
                uint4 a[2];
#pragma unroll
                for (u32 m = 0; m < 2; m++)
                    a[m] = left[t % STAGES][((2 * below + m) * 2 + half) * 32 + lane];
                multiply_half<H, HOW, PIXELS>(sum, tile, 32 * beside, half, a);
            }
            if (--to_go > 0 && t + 1 < s.tiles) continue;
            to_go = s.slice;
#pragma unroll
            for (u32 e = 0; e < 32; e++)
                total[e / 16][e / 4 % 4][e % 4] += sum[e / 16][e / 4 % 4][e % 4];
            clear(sum);
        }
        finish(total, bias, residual, out, s, blockIdx.y * FILTERS + 32 * below + lane / 4,
               blockIdx.x * PIXELS + 32 * beside + lane % 4 * 2);
    }

    // Calls `f(m, n, i, filter, at)` for each of a thread's sums that there is: `filter` among all,
    // and its place in results. With `by_twos` for the first of two that lie side by side.
    template <class F>
    static __device__ __forceinline__ void each(const Shape &s, u32 filter, u32 pixel, bool by_twos,
                                                F f) {
        u32 plane = s.out[0] * s.out[1], per = s.filters / s.groups;
#pragma unroll
        for (u32 e = 0; e < 8; e++) {
            u32 at = pixel + e / 2 * 8 + e % 2;
            if (at >= s.rows * plane || (by_twos && e % 2 == 1)) continue;
            at = at / plane * s.filters * plane + at % plane;
#pragma unroll
            for (u32 i = 0; i < 4; i++) {
                u32 to = filter + 8 * i, all = blockIdx.z * per + to;
                if (to < per) f(i / 2, e / 2, i % 2 * 2 + e % 2, all, at + all * plane);
            }
        }
    }

    static __device__ __forceinline__ void finish(float (&sum)[2][4][4], const float *bias,
                                                  const float *residual, float *out, const Shape &s,
                                                  u32 filter, u32 pixel) {
        // Two pixels of one image, at a multiple of their size.
        bool by_twos = s.out[0] * s.out[1] % 2 == 0 && is_aligned(out, 8);
        by_twos = by_twos && is_aligned(residual, 8);
        if (bias || residual) {
            each(s, filter, pixel, by_twos, [&](u32 m, u32 n, u32 i, u32 to, u32 at) {
                float (&of)[4] = sum[m][n];
                float added = bias ? bias[to] : 0.0f;
                of[i] += added;
                if (by_twos) {
                    of[i | 1] += added;
                    if (!residual) return;
                    float2 two = *(const float2 *)(residual + at);
                    of[i] += two.x;
                    of[i | 1] += two.y;
                } else if (residual) {
                    of[i] += residual[at];
                }
            });
        }
        if (s.act > 2) {
            // One element at a time, each moved to the first: the code of activations is long.
#pragma unroll 1
            for (u32 e = 0; e < 32; e++) {
                float v = activate(s.act, sum[0][0][0]);
#pragma unroll
                for (u32 i = 1; i < 32; i++)
                    sum[(i - 1) / 16][(i - 1) / 4 % 4][(i - 1) % 4] = sum[i / 16][i / 4 % 4][i % 4];
                sum[1][3][3] = v;
            }
        }
        auto short_act = [&](float v) {
            if (s.act == 2) v = smaller(6.0f, v);
            return s.act == 1 || s.act == 2 ? larger(0.0f, v) : v;
        };
        each(s, filter, pixel, by_twos, [&](u32 m, u32 n, u32 i, u32, u32 at) {
            float v = short_act(sum[m][n][i]);
            if (by_twos)
                *(float2 *)(out + at) = make_float2(v, short_act(sum[m][n][i | 1]));
            else
                out[at] = v;
        });
    }
};

// 16 filters and 32 pixels in each of eight warps, which has one slice of them: where outputs are
// few. The slices of the same filters are beside each other, and their sums are added at the end.
template <class H, Windows HOW>
DEVICE void conv_few(const float *x, const uint4 *weights, const float *bias, const float *residual,
                     float *out, const Shape &s) {
    // Of each warp, 32 pixels; and at the end 16 rows of sums, which lie in different banks too.
    const u32 ROOM = Rows<HOW, 32>::ALL, ROW = ROOM / 16;
    __shared__ __align__(16) u32 room[8][ROOM];
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    u32 part = warp / s.slices, parts = 8 / s.slices, all = filter_tiles(s);
    u32 begin = warp % s.slices * s.slice;
    u32 end = begin + s.slice < s.tiles ? begin + s.slice : s.tiles;
    u32 *mine = room[warp];

    u32 tile = blockIdx.y * parts + part;
    // Those behind the last are not kept.
    tile = blockIdx.z * all + (tile < all ? tile : all - 1);
    float sum[1][4][4];
    clear(sum);
    if (begin < end) {
        const uint4 *from = weights + ((u64)tile * s.tiles + begin) * 64 + lane;
        // Lines of 128 bytes of the whole slice: the time is that of reading filters.
        for (u32 line = lane; line < (end - begin) * 8; line += 32)
            asm volatile("prefetch.global.L2 [%0];" ::"l"(from - lane + line * 8));
        Gather<H, HOW, 32, 32> gather;
        gather.start(x, s, lane, blockIdx.x * 32, begin);
        gather.ask(s);
        uint4 next[2] = {from[0], from[32]};
#pragma unroll 1
        for (u32 t = begin; t < end; t++) {
            __syncwarp();
            gather.put(mine);
            __syncwarp();
            uint4 now[2][1] = {{next[0]}, {next[1]}};
            if (t + 1 < end) {
                from += 64;
                next[0] = from[0];
                next[1] = from[32];
                gather.ask(s);
            }
            multiply_half<H, HOW, 32>(sum, mine, 0, 0, now[0]);
            multiply_half<H, HOW, 32>(sum, mine, 0, 1, now[1]);
        }
    }
    __syncwarp();
    float *to = (float *)mine + lane / 4 * ROW + lane % 4 * 2;
#pragma unroll
    for (u32 e = 0; e < 8; e++)
        *(float2 *)(to + e % 2 * 8 * ROW + e / 2 * 8) =
            make_float2(sum[0][e / 2][e % 2 * 2], sum[0][e / 2][e % 2 * 2 + 1]);
    __syncthreads();

    u32 plane = s.out[0] * s.out[1], num = (s.tiles + s.slice - 1) / s.slice;
#pragma unroll 1
    for (u32 i = threadIdx.x; i < parts * 512; i += 256) {
        u32 row = i / 32 % 16, pixel = blockIdx.x * 32 + i % 32;
        u32 filter = (blockIdx.y * parts + i / 512) * 16 + row, per = s.filters / s.groups;
        if (filter >= per || pixel >= s.rows * plane) continue;
        float v = 0;
        for (u32 k = 0; k < num; k++)
            v += *((const float *)room[i / 512 * s.slices + k] + row * ROW + i % 32);
        filter += blockIdx.z * per;
        u32 at = (pixel / plane * s.filters + filter) * plane + pixel % plane;
        if (bias) v += bias[filter];
        if (residual) v += residual[at];
        out[at] = activate(s.act, v);
    }
}

#define INSTANCE(NAME, H, HOW)                                                                     \
    extern "C" __global__ void __launch_bounds__(256, 2)                                           \
        conv_matrix_few_##NAME(const float *x, const uint4 *weights, const float *bias,            \
                               const float *residual, float *out, Shape s) {                       \
        conv_few<H, HOW>(x, weights, bias, residual, out, s);                                      \
    }                                                                                              \
    extern "C" __global__ void __launch_bounds__(128, 4)                                           \
        conv_matrix_some_##NAME(const float *x, const uint4 *weights, const float *bias,           \
                                const float *residual, float *out, Shape s) {                      \
        Tiles<H, 64, 64, HOW>::run(x, weights, bias, residual, out, s);                            \
    }                                                                                              \
    extern "C" __global__ void __launch_bounds__(256, 2)                                           \
        conv_matrix_many_##NAME(const float *x, const uint4 *weights, const float *bias,           \
                                const float *residual, float *out, Shape s) {                      \
        Tiles<H, 128, 64, HOW>::run(x, weights, bias, residual, out, s);                           \
    }

INSTANCE(bf16, bf16, CHANNELS)
INSTANCE(bf16_any, bf16, ANY)
INSTANCE(bf16_points, bf16, POINTS)
INSTANCE(f16, f16, CHANNELS)
INSTANCE(f16_any, f16, ANY)
INSTANCE(f16_points, f16, POINTS)
