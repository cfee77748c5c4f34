// Pooling of planes.

struct Shape {
    u32 len;
    u32 size[2], out[2], kernel[2], stride[2], pad[2];
    u32 is_max;
};

KERNEL pool2d(const float *x, float *out, Shape s) {
    EACH_ITEM(i, s.len) {
        u32 ox = i % s.out[1], oy = i / s.out[1] % s.out[0], plane = i / (s.out[0] * s.out[1]);
        const float *from = x + (u64)plane * s.size[0] * s.size[1];
        float top = NEG_INF, sum = 0;
        u32 num = 0;
        for (u32 ky = 0; ky < s.kernel[0]; ky++) {
            // Rows above the first wrap to large numbers.
            u32 y = oy * s.stride[0] + ky - s.pad[0];
            if (y >= s.size[0]) continue;
            for (u32 kx = 0; kx < s.kernel[1]; kx++) {
                u32 at = ox * s.stride[1] + kx - s.pad[1];
                if (at >= s.size[1]) continue;
                float v = from[y * s.size[1] + at];
                // What is no number stays, whatever comes behind it.
                top = v != v || v > top ? v : top;
                sum += v;
                num++;
            }
        }
        out[i] = s.is_max ? top : num ? sum / (float)num : 0.0f;
    }
}

// One warp for each plane.
KERNEL global_average_pool(const float *x, float *out, u32 planes, u32 plane) {
    u32 at = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
    if (at >= planes) return;
    float sum = 0;
    for (u32 i = lane; i < plane; i += 32) sum += x[(u64)at * plane + i];
    sum = warp_sum(sum);
    if (lane == 0) out[at] = sum / (float)plane;
}
