"""CUDA source that all cells share: storage and computation types, sigmoid, tanh, gates, sums.

The kernels are templates of a storage type T. For complex arrays, whose numbers are a value and a
tangent, T is Dual: the same source then computes values and slopes, as ``arithmetic/dual.py`` does
in NumPy.
"""

from __future__ import annotations

TYPES = {
    "float16": "__half",
    "bfloat16": "__nv_bfloat16",
    "float32": "float",
    "float64": "double",
    "complex64": "Dual<float>",
    "complex128": "Dual<double>",
}
# The types of the computation, by storage type.
ACCUMULATORS = TYPES | {"float16": "float", "bfloat16": "float"}

_DUAL = r"""
// A value and its slope along a direction; in memory a complex number. Products and functions are
// exact to first order: the square of a slope vanishes beside a value.
template <typename R> struct alignas(2 * sizeof(R)) Dual {
    R value, slope;
    Dual() = default;
    __device__ __forceinline__ Dual(R v, R s = R(0)) : value(v), slope(s) {}

    // Friends, so that one operand may be a plain number.
    friend __device__ __forceinline__ Dual operator-(Dual a) { return {-a.value, -a.slope}; }
    friend __device__ __forceinline__ Dual operator+(Dual a, Dual b)
    {
        return {a.value + b.value, a.slope + b.slope};
    }
    friend __device__ __forceinline__ Dual operator-(Dual a, Dual b)
    {
        return {a.value - b.value, a.slope - b.slope};
    }
    friend __device__ __forceinline__ Dual operator*(Dual a, Dual b)
    {
        return {a.value * b.value, a.slope * b.value + a.value * b.slope};
    }
    friend __device__ __forceinline__ Dual operator/(Dual a, Dual b)
    {
        // In this order, because the square of b may overflow.
        const R value = a.value / b.value;
        return {value, (a.slope - value * b.slope) / b.value};
    }
    friend __device__ __forceinline__ Dual& operator+=(Dual& a, Dual b) { return a = a + b; }
    friend __device__ __forceinline__ Dual& operator*=(Dual& a, Dual b) { return a = a * b; }

    // Only the values are compared.
    friend __device__ __forceinline__ bool operator<(Dual a, Dual b) { return a.value < b.value; }
    friend __device__ __forceinline__ bool operator>(Dual a, Dual b) { return a.value > b.value; }
    friend __device__ __forceinline__ bool operator<=(Dual a, Dual b) { return a.value <= b.value; }
    friend __device__ __forceinline__ bool operator>=(Dual a, Dual b) { return a.value >= b.value; }

    friend __device__ __forceinline__ Dual from_lane(Dual a, int d)
    {
        return {::from_lane(a.value, d), ::from_lane(a.slope, d)};
    }
};
template <typename R> struct Acc<Dual<R>> { typedef Dual<R> type; typedef R real; };

__device__ __forceinline__ float largest(float) { return 3.402823466e+38f; }
__device__ __forceinline__ double largest(double) { return 1.7976931348623157e+308; }

template <typename R>
__device__ __forceinline__ Dual<R> exp_(Dual<R> z)
{
    // A value may be infinite, but not a slope: infinity times a slope of zero is NaN.
    const R value = exp_(z.value), most = largest(value);
    const R slope = (value > most ? most : value) * z.slope;
    return Dual<R>(value, slope > most ? most : slope < -most ? -most : slope);
}
template <typename R>
__device__ __forceinline__ Dual<R> tanh_(Dual<R> z)
{
    const R value = exact_tanh(z.value);
    return Dual<R>(value, (R(1) - value * value) * z.slope);
}
"""

# The additional source of a module, which is compiled for one of the types.
_TRAITS = {
    "float16": r"""
#include <cuda_fp16.h>
#define MMA_TYPE "f16"  // what mma.sync calls it
template <> struct Acc<__half> { typedef float type; typedef float real; };
__device__ __forceinline__ float wide(__half v) { return __half2float(v); }
__device__ __forceinline__ void store(__half* p, float v) { *p = __float2half_rn(v); }
""",
    "bfloat16": r"""
#include <cuda_bf16.h>
#define MMA_TYPE "bf16"
template <> struct Acc<__nv_bfloat16> { typedef float type; typedef float real; };
__device__ __forceinline__ float wide(__nv_bfloat16 v) { return __bfloat162float(v); }
__device__ __forceinline__ void store(__nv_bfloat16* p, float v) { *p = __float2bfloat16(v); }
""",
    "complex64": _DUAL,
    "complex128": _DUAL,
}

_COMMON = r"""
// For a storage type: the type of the computation, and the type without a slope, for attributes.
template <typename T> struct Acc { typedef T type; typedef T real; };
template <typename T> __device__ __forceinline__ T wide(T v) { return v; }
template <typename T> __device__ __forceinline__ void store(T* p, T v) { *p = v; }
template <typename T>
__device__ __forceinline__ T from_lane(T v, int d) { return __shfl_xor_sync(~0u, v, d); }
__device__ __forceinline__ float exp_(float v) { return expf(v); }
__device__ __forceinline__ double exp_(double v) { return exp(v); }
__device__ __forceinline__ float exact_tanh(float v) { return tanhf(v); }
__device__ __forceinline__ double exact_tanh(double v) { return tanh(v); }

// Exact in both tails: exp may overflow to infinity, whose reciprocal is 0.
template <typename A>
__device__ __forceinline__ A sigmoid(A z) { return A(1) / (A(1) + exp_(-z)); }
__device__ __forceinline__ double tanh_(double v) { return exact_tanh(v); }

// For float with the GPU's fast functions, correct to 3e-7: the exact ones would take half the time
// of a step. There is no branch either: a branch keeps the compiler from reordering a step.
#ifndef CUDA_ON_CPU
__device__ __forceinline__ float power_of_two(float v)
{
    float p;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(p) : "f"(v));
    return p;
}
__device__ __forceinline__ float inverse(float v)
{
    float i;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(i) : "f"(v));
    return i;
}
#endif
const float LOG2_E = 1.442695041f, LN_2 = 0.6931471825f, LN_2_REST = -1.904654299e-9f;
// Rounding z * log2(e) gives the power a relative error that grows with |z|. `lost` is this error
// and corrects the power, unless z is infinite or huge.
__device__ __forceinline__ float sigmoid(float z)
{
    const float exponent = z * -LOG2_E, power = power_of_two(exponent);
    const float lost = fmaf(exponent, -LN_2_REST, fmaf(exponent, -LN_2, -z));
    return inverse(1.f + (fabsf(z) < 87.f ? fmaf(power, lost, power) : power));
}
// 1 - 2 / (1 + exp(2|v|)), with an error that vanishes with the slope. Near 0 this difference loses
// digits: there it is an odd polynomial, fitted to the smallest relative error.
__device__ __forceinline__ float tanh_(float v)
{
    const float e = power_of_two(fabsf(v) * (2.f * LOG2_E)), s = v * v;
    const float far = copysignf(fmaf(-2.f, inverse(1.f + e), 1.f), v);
    float p = -0.005905866157f;
    p = fmaf(p, s, 0.02080538310f);
    p = fmaf(p, s, -0.05378668383f);
    p = fmaf(p, s, 0.1333195865f);
    p = fmaf(p, s, -0.3333329856f);
    return fabsf(v) < 0.55f ? fmaf(v * s, p, v) : far;
}

// The activation of the gates: the sigmoid or, if hard, clip(slope*z + offset, 0, 1).
template <typename A> struct Gate { bool hard; typename Acc<A>::real slope, offset; };

template <typename A>
__device__ __forceinline__ A gate_of(const Gate<A>& gate, A z)
{
    const A soft = sigmoid(z), line = A(gate.slope) * z + A(gate.offset);
    // Comparisons, because fmin and fmax lose a NaN; with equality, because the slope at a bound is
    // zero.
    const A hard = line >= A(1) ? A(1) : line <= A(0) ? A(0) : line;
    return gate.hard ? hard : soft;
}

// The slope of the activation, from its value g.
template <typename A>
__device__ __forceinline__ A slope_of(const Gate<A>& gate, A g)
{
    if (!gate.hard) return g * (A(1) - g);
    return g > A(0) && g < A(1) ? A(gate.slope) : A(0);
}
"""

# Sums of columns in one launch, or in two: first of S slices of the rows, then of the S sums.
# A fixed order of additions, so the result has the same bits every time.
_SUMS = r"""
const int ROW_THREADS = 8;
const int COLUMN_THREADS = 32;

// Add up the ROW_THREADS partial sums of a column; the first row of threads has the result.
template <typename A>
__device__ A block_sum(A sum, A (*shared)[COLUMN_THREADS])
{
    __syncthreads();
    shared[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y == 0)
        for (int k = 1; k < ROW_THREADS; ++k) sum += shared[k][threadIdx.x];
    return sum;
}

// Sums of columns, rounded once. They are the gradients of biases. If two biases are added, their
// gradients share the first sums. After these, each bias may have columns of its own.
template <typename T, typename S>
__global__ void column_sums(
    const T *g,            // [rows, columns]
    const T *others,       // [rows, columns_of_others], which follow the columns of g; may be null
    S *sums,               // [gridDim.y, width], written: for each slice of the rows, the sums of
                           // the first `width` columns
    S *more,               // written with one slice, if it is not null: the sums of the first
                           // `both` columns, then the sums of the columns from `width` on
    long long rows, long long columns, long long columns_of_others,
    long long width, long long both,
    long long turn)        // which column of g comes first
{
    typedef typename Acc<T>::type A;
    __shared__ A shared[ROW_THREADS][COLUMN_THREADS];
    const long long column = (long long)blockIdx.x * COLUMN_THREADS + threadIdx.x;
    const bool is_other = column >= columns, inside = column < columns + columns_of_others;
    const T* const from =
        is_other ? others + (column - columns) : g + (column + turn) % columns;
    A sum = A(0);
    if (inside)
        for (long long row = (long long)blockIdx.y * ROW_THREADS + threadIdx.y; row < rows;
             row += (long long)gridDim.y * ROW_THREADS)
            sum += wide(from[row * (is_other ? columns_of_others : columns)]);
    sum = block_sum(sum, shared);
    if (threadIdx.y > 0 || !inside) return;
    if (column < width) store(sums + blockIdx.y * width + column, sum);
    if (more && column < both) store(more + column, sum);
    if (more && column >= width) store(more + column - width + both, sum);
}
"""


def source(dtype_name: str, cell: str) -> str:
    """Return the whole source of a cell's module for one storage type."""
    stored = f"typedef {TYPES[dtype_name]} Stored;  // the storage type of the module\n"
    return _COMMON + _TRAITS.get(dtype_name, "") + stored + _SUMS + cell
