// Kernels with one mistake each, and the same without it.

extern "C" __global__ void past_end(float* x, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i <= n) x[i] = 1;
}

extern "C" __global__ void inside(float* x, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] = 1;
}

extern "C" __global__ void copy(const float* x, float* y) {
    y[threadIdx.x] = x[threadIdx.x];
}

// The other half of a block reads what the first has written.
extern "C" __global__ void exchange(float* y) {
    __shared__ float s[64];
    s[threadIdx.x] = threadIdx.x;
    __syncthreads();
    y[threadIdx.x] = s[63 - threadIdx.x];
}

extern "C" __global__ void exchange_without_barrier(float* y) {
    __shared__ float s[64];
    s[63 - threadIdx.x] = 0;
    __syncthreads();
    s[threadIdx.x] = threadIdx.x;
    y[threadIdx.x] = s[63 - threadIdx.x];
}

// Lanes of one warp.
extern "C" __global__ void warp_exchange(float* y) {
    __shared__ float s[32];
    s[threadIdx.x] = threadIdx.x;
    __syncwarp();
    y[threadIdx.x] = s[31 - threadIdx.x];
}

extern "C" __global__ void warp_exchange_without_sync(float* y) {
    __shared__ float s[32];
    s[threadIdx.x] = threadIdx.x;
    y[threadIdx.x] = s[31 - threadIdx.x];
}

// Every block adds to the same place.
extern "C" __global__ void add_atomically(int* x) { atomicAdd(x, blockIdx.x + 1); }
extern "C" __global__ void add_plainly(int* x) { *x += blockIdx.x + 1; }

extern "C" __global__ void load4(const float* x, float4* y, int offset) {
    y[threadIdx.x] = *(const float4*)(x + threadIdx.x * 4 + offset);
}

extern "C" __global__ void barrier_for_all(float* y) {
    __shared__ float s[32];
    if (threadIdx.x < 16) s[threadIdx.x] = threadIdx.x;
    __syncthreads();
    y[threadIdx.x] = s[threadIdx.x % 16];
}

extern "C" __global__ void barrier_for_some(float* y) {
    __shared__ float s[32];
    if (threadIdx.x < 16) {
        s[threadIdx.x] = threadIdx.x;
        __syncthreads();
        y[threadIdx.x] = s[15 - threadIdx.x];
    }
}

// Lanes of a mask that never come together.
extern "C" __global__ void lanes_that_do_not_come(int* y) {
    if (threadIdx.x < 16) y[threadIdx.x] = __shfl_sync(~0u, threadIdx.x, 0);
    else y[threadIdx.x] = __ballot_sync(~0u, 1);
}

extern "C" __global__ void endless(volatile int* x) {
    while (*x == 0) {}
}

extern "C" __global__ void shared_past_end(float* y, int n) {
    __shared__ float s[16], t[16];
    for (int i = 0; i < n; i++) s[i] = t[i % 16] = i;
    y[0] = s[n - 1] + t[0];
}
