"""CUDA source that the tests of what runs CUDA source run."""

REDUCE = r"""
#include <cuda_fp16.h>
#include <cuda_bf16.h>

// out[block] = sum of the block's part of x
template <typename T, int threads>
__global__ void __launch_bounds__(threads) reduce(const T* __restrict__ x, T* out, int n) {
  __shared__ alignas(16) T part[threads];
  const int t = threadIdx.x, i = blockIdx.x * threads + t;
  part[t] = i < n ? x[i] : T(0);
  __syncthreads();  // load
  for (int half_way = threads / 2; half_way > 0; half_way /= 2) {
    if (t < half_way) part[t] = part[t] + part[t + half_way];
    __syncthreads();  // add
  }
  if (t == 0) out[blockIdx.x] = part[0];
}

// the same in dynamic shared memory
extern "C" __global__ void reduce_dynamic(const double* x, double* out, int n) {
  extern __shared__ __align__(16) unsigned char memory[];
  double* part = reinterpret_cast<double*>(memory);
  const int t = threadIdx.x, i = blockIdx.x * blockDim.x + t;
  part[t] = i < n ? x[i] : 0.0;
  __syncthreads();
  for (int half_way = blockDim.x / 2; half_way > 0; half_way /= 2) {
    if (t < half_way) part[t] += part[t + half_way];
    __syncthreads();
  }
  if (t == 0) out[blockIdx.x] = part[0];
}
"""
PLAIN = r"""
template <typename T>
__global__ void scale(T* x, T factor, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) x[i] = x[i] * factor;
}

__global__ void write_at(float* x, long long i) {
  x[i] = 1.0f;  // write_at
}

__global__ void write_byte_at(unsigned char* x, long long i) {
  x[i] = 1;
}

__global__ void write_shared_at(float* x, int i) {
  __shared__ float part[8];
  part[i] = 1.0f;  // write_shared_at
  x[0] = part[i];
}

__global__ void add_into(const float* a, float* sum, int n) {
  for (int i = threadIdx.x; i < n; i += blockDim.x) sum[i] += a[i];
}

__global__ void take_all(bool a, signed char b, unsigned short c, int d, long long e,
                         unsigned long long f, float g, double h, const void* p, double* out) {
  const double values[] = {double(a), double(b), double(c), double(d), double(e), double(f), g, h,
                           p ? 1.0 : 0.0};
  for (int i = 0; i < 9; ++i) out[i] = values[i];
}

__global__ void indices(int* out) {
  const int block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  const int thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  const int threads = blockDim.x * blockDim.y * blockDim.z;
  out[block * threads + thread] += 1 + block * threads + thread;
}

__global__ void read_poison(unsigned* out, int dynamic_words) {
  __shared__ unsigned fixed[4];
  extern __shared__ unsigned dynamic[];
  for (int i = 0; i < 4; ++i) *out++ = fixed[i];
  for (int i = 0; i < dynamic_words; ++i) *out++ = dynamic[i];
  for (int i = 0; i < 4; ++i) fixed[i] = 0;
  for (int i = 0; i < dynamic_words; ++i) dynamic[i] = 0;
}

__global__ void write_dynamic(int words) {
  extern __shared__ unsigned dynamic[];
  for (int i = 0; i < words; ++i) dynamic[i] = i;
}
"""
