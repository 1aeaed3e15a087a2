"""
CUDA source: a barrier among blocks, and an LSTM backwards over all steps with w_h spread over them.

The ground for kernels whose matrix needs more than one block, which the package does not have. The
blocks of one row of the grid are a group that shares its sequences: they wait for each other once a
step, and for blocks of another group never.
"""

from cupyrnn.kernels import common, lstm

BARRIER = r"""
// All blocks of a group are here, and what each wrote before can be read by all threads after. The
// counter begins at zero and only rises: nobody has to put it back in time.
__device__ __forceinline__ void arrive(unsigned* counter)
{
#ifdef CUDA_ON_CPU
    cuda_on_cpu::add_release(counter, 1u);
#else
    asm volatile("red.release.gpu.global.add.u32 [%0], %1;" :: "l"(counter), "r"(1u) : "memory");
#endif
}

__device__ __forceinline__ unsigned arrived(const unsigned* counter)
{
#ifdef CUDA_ON_CPU
    __nanosleep(0);
    return cuda_on_cpu::load_acquire(counter);
#else
    unsigned n;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(n) : "l"(counter) : "memory");
    return n;
#endif
}

__device__ __forceinline__ void meet(unsigned* counter, unsigned target)
{
    __syncthreads();  // before the arrival
    if (threadIdx.x == 0) {
        arrive(counter);
        while (int(arrived(counter) - target) < 0) { }
    }
    __syncthreads();  // after the wait
}
"""

# Each block keeps the rows of w_h of UNITS units, for ROWS sequences. A group writes the deltas of
# a step into dz, meets, and reads all of them.
BACKWARD = r"""
template <typename T, int UNITS, int ROWS, int WARPS>
__global__ void __launch_bounds__(32 * WARPS) lstm_backward_grid(
    const T* w,                           // w_h [H, 4*H], read: gates in the order i, ci, f, o
    const T* i, const T* cs, const T* f, const T* o, const T* ci, const T* co,  // [n, H], read
    const T* cs_prev,                     // [n, H], read
    const T* cs_grad, const T* h_grad,    // [n, H], read
    typename Acc<T>::type* dh,            // [B, H], updated
    typename Acc<T>::type* dcs,           // [B, H], updated
    T* dz,                                // [n, 4*H], written
    unsigned* counters,                   // [gridDim.y], zeros
    const long long* starts,              // [steps + 1], read: the first row of each step
    long long steps, long long B, long long units)
{
    typedef typename Acc<T>::type A;
    extern __shared__ A weights[];  // [4*H, UNITS]
    __shared__ A partial[WARPS][ROWS][UNITS];
    const int H = units, K = 4 * H, unit0 = blockIdx.x * UNITS, row0 = blockIdx.y * ROWS;
    const Gate<A> gate = {false, 0, 0};
    unsigned* const counter = counters + blockIdx.y;
    for (int n = threadIdx.x; n < K * UNITS; n += blockDim.x) {
        const int j = n / UNITS, u = unit0 + n % UNITS;
        weights[n] = u < H ? wide(w[u * K + j]) : A(0);
    }
    const int cell = threadIdx.x, r = cell / UNITS, unit = unit0 + cell % UNITS;
    const bool owner = cell < ROWS * UNITS && unit < H && row0 + r < B;
    const long long state = (row0 + r) * (long long)H + unit;
    A grad = owner ? dh[state] : A(0), dc = owner ? dcs[state] : A(0);
    unsigned target = 0;
    for (long long s = steps - 1; s >= 0; --s) {
        const long long from = starts[s], to = starts[s + 1];
        const bool now = owner && from + row0 + r < to;
        if (from + row0 >= to) continue;  // the same for all blocks of a group
        if (now) {
            const long long e = (from + row0 + r) * H + unit;
            const LSTMFactors<A> k = lstm_factors<A>(
                gate, wide(i[e]), wide(cs[e]), wide(f[e]), wide(o[e]), wide(ci[e]), wide(co[e]),
                wide(cs_prev[e]), false, A(0), A(0), A(0), false, 0);
            const LSTMGateGradients<A> g =
                lstm_gate_gradients<A>(k, dc, wide(cs_grad[e]), grad + wide(h_grad[e]));
            dc = g.dcs;
            T* const q = dz + (from + row0 + r) * K + unit;
            store(q, g.di), store(q + H, g.dci), store(q + 2 * H, g.df), store(q + 3 * H, g.d_o);
        }
        target += gridDim.x;
        meet(counter, target);
        A sums[ROWS][UNITS];
#pragma unroll
        for (int a = 0; a < ROWS; ++a)
#pragma unroll
            for (int u = 0; u < UNITS; ++u) sums[a][u] = A(0);
        for (int j = threadIdx.x; j < K; j += blockDim.x)
#pragma unroll
            for (int a = 0; a < ROWS; ++a)
                if (from + row0 + a < to) {
                    // Past the first-level cache, which does not see what other blocks write.
                    const A d = wide(__ldcg(dz + (from + row0 + a) * K + j));
#pragma unroll
                    for (int u = 0; u < UNITS; ++u) sums[a][u] += d * weights[j * UNITS + u];
                }
#pragma unroll
        for (int a = 0; a < ROWS; ++a)
#pragma unroll
            for (int u = 0; u < UNITS; ++u) {
                A v = sums[a][u];
                for (int d = 16; d; d /= 2) v += __shfl_xor_sync(~0u, v, d);
                if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32][a][u] = v;
            }
        __syncthreads();  // before the last sum
        if (now) {
            grad = A(0);
            for (int n = 0; n < WARPS; ++n) grad += partial[n][r][cell % UNITS];
        }
    }
    if (owner) dh[state] = grad, dcs[state] = dc;
}
"""

UNITS, ROWS, WARPS = 4, 3, 2
NAME = f"lstm_backward_grid<float, {UNITS}, {ROWS}, {WARPS}>"
SOURCE = common.source("float32", lstm.GATES + BARRIER + BACKWARD)
