"""
The kernels of a single step: one for each product, launched by the loop.

If the grid has too few threads, the thread of a column computes its rows one after the other.
"""

from __future__ import annotations

from typing import NamedTuple

from . import cell

SOURCE = (
    cell.SOURCE
    + r"""
// How many blocks of 256 threads are to fit on a multiprocessor.
template <typename T, bool PADDED> constexpr int blocks_at_once()
{
    return (sizeof(typename Acc<T>::type) == 4 ? 4 : sizeof(typename Acc<T>::type) == 8 ? 3 : 2)
        - PADDED;
}

// A step at time t; without padding all rows have all steps.
template <bool PADDED> struct Moment {
    const Steps& at;
    const long long t, B;
    __device__ __forceinline__ Moment(const Steps& all, long long first_row, long long rows)
        : at(all), t(PADDED ? first_row / rows : 0), B(rows) {}
    __device__ __forceinline__ long long ends(long long row) const
    {
        return at.lengths ? at.lengths[row] : at.steps;
    }
    __device__ __forceinline__ bool live(long long row) const { return !PADDED || t < ends(row); }
    // Whether no state passes from the step before to this one, and from this one to the next.
    __device__ __forceinline__ bool begins(long long row) const { return cut(row, t + at.back); }
    __device__ __forceinline__ bool stops(long long row) const
    {
        return at.back ? t > 0 && cut(row, t) : cut(row, t + 1);
    }
    __device__ __forceinline__ bool cut(long long row, long long later) const
    {
        return PADDED && at.resets && later < ends(row) && at.resets[later * B + row];
    }
};

// Computes what follows product P of a step, for rows [first_row, first_row + B) of all arrays.
// The first states are null except in the first step, the last ones except in the last step.
// Where a padded row has ended, or has not begun, its state stays and zeros are saved.
template <template <typename> class Cell, typename T, int P, bool PADDED>
__global__ void __launch_bounds__(256, blocks_at_once<T, PADDED>()) forward_step(
    const Cell<typename Acc<T>::type> cell, const Forward<Cell, T> arrays,
    const typename Acc<T>::type* product,  // [B, width * H], read; null: z has it
    T* operand,                        // [B, H], written: of the next product; null: not wanted
    const Steps all,                   // says the lengths and resets of padded rows
    long long first_row, long long B, long long H)
{
    typedef typename Acc<T>::type A;
    typedef Cell<A> C;
    const int WIDTH = C::width(P);
    const long long column = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (column >= H) return;
    const typename C::Unit unit = cell.unit(column, H);
    const Moment<PADDED> now(all, first_row, B);
    const bool last = P + 1 == C::PRODUCTS;
    for (long long row = (long long)blockIdx.y * blockDim.y + threadIdx.y; row < B;
         row += (long long)gridDim.y * blockDim.y) {
        const long long at = row * H + column, saved_at = first_row * H + at;
        const bool live = now.live(row), begins = now.begins(row);
        const A* const z_row = arrays.z[P] + (first_row + row) * (WIDTH * H) + column;
        A z[WIDTH], sums[WIDTH];
#pragma unroll
        for (int k = 0; k < WIDTH; ++k) {
            z[k] = z_row[cell.column(k) * H];
            // Adding a negative zero changes no number, so the compiler leaves it out.
            sums[k] = C::APART
                ? product[row * (WIDTH * H) + cell.weight(k) * H + column] : -A(0);
        }
        typename C::State state = {};
        typename C::Saved saved = {};
#pragma unroll
        for (int k = 0; k < C::STATES; ++k)
            if (C::reads(P) >> k & 1 || (!live && k < C::CARRIED)) {
                const T* const first = k < C::CARRIED ? arrays.first[k % C::CARRIED] : nullptr;
                array_of<A>(state)[k] = first ? A(wide(first[at])) : arrays.states[k][at];
                if (begins && k < C::CARRIED) array_of<A>(state)[k] = A(0.f);
            }
        A h = state.h;
        if (live) h = cell.forward(Product<P>(), unit, z, sums, state, saved);
        if (operand) store(operand + at, last && now.stops(row) ? A(0.f) : h);
#pragma unroll
        for (int k = 0; k < C::STATES; ++k)
            if (C::writes(P) >> k & 1 || (PADDED && last && k < C::CARRIED))
                arrays.states[k][at] = array_of<A>(state)[k];
#pragma unroll
        for (int k = C::saved_before(P); k < C::saved_before(P + 1); ++k)
            store(arrays.saved[k] + saved_at, array_of<A>(saved)[k]);
        if (!last) continue;
#pragma unroll
        for (int k = 0; k < C::CARRIED; ++k)
            if (arrays.last[k]) store(arrays.last[k] + at, array_of<A>(state)[k]);
        if (arrays.output)
            store(arrays.output + (first_row + row) * arrays.output_row + column, saved.h);
    }
}

// The gradient of what follows product P. Where a padded row has ended, or has not begun, the
// gradients of its states stay, and those of the product are zeros: the product of the step, which
// is added then, changes nothing.
template <template <typename> class Cell, typename T, int P, bool PADDED>
__global__ void __launch_bounds__(256, blocks_at_once<T, PADDED>()) backward_step(
    const Cell<typename Acc<T>::type> cell, const Backward<Cell, T> arrays,
    const typename Acc<T>::type* d_operand,  // [B, H], read: the gradient of what product P + 1
                                             // multiplied; null where there is none
    const Steps all,                         // as above
    long long first_row, long long B, long long H)
{
    typedef typename Acc<T>::type A;
    typedef Cell<A> C;
    const long long column = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (column >= H) return;
    const typename C::Unit unit = cell.unit(column, H);
    const Moment<PADDED> now(all, first_row, B);
    const bool last = P + 1 == C::PRODUCTS;
    for (long long row = (long long)blockIdx.y * blockDim.y + threadIdx.y; row < B;
         row += (long long)gridDim.y * blockDim.y) {
        const long long at = row * H + column, saved_at = first_row * H + at;
        const bool live = now.live(row);
        typename C::Gradients gradients = {};
#pragma unroll
        for (int k = 0; k < C::GRADIENTS; ++k) {
            A g = arrays.gradients[k][at];
            if (last && arrays.last[k]) g = wide(arrays.last[k][at]);
            array_of<A>(gradients)[k] = last && now.stops(row) ? A(0.f) : g;
        }
        A d[C::deltas(P)] = {};
        if (live) {
            typename C::Read read;
            A cotangents[C::COTANGENTS];
#pragma unroll
            for (int k = 0; k < C::READ; ++k) array_of<A>(read)[k] = wide(arrays.read[k][saved_at]);
#pragma unroll
            for (int k = 0; k < C::COTANGENTS; ++k) {
                const long long apart = k || !arrays.cotangent_row ? H : arrays.cotangent_row;
                const T* const of_rows = arrays.cotangents[k];
                cotangents[k] =
                    of_rows ? wide(of_rows[(first_row + row) * apart + column]) : A(0);
            }
            const A dh = last ? gradients.h + cotangents[0] : d_operand[at];
            const A past = cell.backward(
                Product<P>(), cell.factors(unit, read), dh, cotangents, gradients, d);
            if (P == 0) gradients.h = past;
        }
#pragma unroll
        for (int k = 0; k < C::GRADIENTS; ++k)
            if (PADDED || C::updates(P) >> k & 1)
                arrays.gradients[k][at] = array_of<A>(gradients)[k];
#pragma unroll
        for (int k = 0; k < C::deltas(P); ++k) {
            const long long before = (first_row + row) * C::deltas(P) + cell.place(k);
            store(arrays.deltas[P] + before * H + column, d[k]);
        }
    }
}

// Clips each step's h, for a projection.
template <typename T>
__global__ void clip_h(
    T* h,                              // [n, P], changed
    typename Acc<T>::real most,
    long long first, long long B,      // the first row of the step, and its rows
    long long P)
{
    typedef typename Acc<T>::type A;
    const long long column = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (column >= P) return;
    for (long long row = (long long)blockIdx.y * blockDim.y + threadIdx.y; row < B;
         row += (long long)gridDim.y * blockDim.y) {
        T* const at = h + (first + row) * P + column;
        const A v = wide(*at), bound = most;
        store(at, v >= bound ? bound : v <= -bound ? -bound : v);
    }
}

// The whole gradient of each step's h, for a projection: the caller's and the next step's.
template <typename T>
__global__ void total_gradient(
    const typename Acc<T>::type* dh,   // [B, P], read: the gradient of h from the next step
    const T* h_grad,                   // [n, P], read; null: zeros
    T* total,                          // [n, P], written
    const T* h,                        // [n, P], read; null: no clip
    typename Acc<T>::real most,        // zero where abs(h) reached it
    long long first, long long B,      // the first row of the step, and its rows
    long long P)
{
    typedef typename Acc<T>::type A;
    const long long column = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (column >= P) return;
    for (long long row = (long long)blockIdx.y * blockDim.y + threadIdx.y; row < B;
         row += (long long)gridDim.y * blockDim.y) {
        const long long state = row * P + column;
        const long long at = first * P + state;
        A d = dh[state] + (h_grad ? wide(h_grad[at]) : A(0));
        if (h) {
            const A v = wide(h[at]);
            d *= A((v < A(0) ? -v : v) < most);
        }
        store(total + at, d);
    }
}
"""
)

TOTAL, CLIP = "total_gradient<{T}>", "clip_h<{T}>"


class Module(NamedTuple):
    """The kernels of a step: their source, and all of them as templates."""

    source: str
    kernels: tuple[str, ...]


def template_of(of: cell.CudaCell, direction: str, product: int, *, padded: bool = False) -> str:
    """Return the template of the kernel that follows or precedes a product."""
    return f"{direction}_step<{of.struct}, {{T}}, {product}, {str(padded).lower()}>"


def module(of: cell.CudaCell) -> Module:
    """Return the kernels of a cell's steps, and the other kernels of its file."""
    names = [
        template_of(of, direction, product, padded=padded)
        for padded in (False, True)
        for direction in ("forward", "backward")
        for product in range(len(of.widths))
    ]
    return Module(SOURCE + of.source, (*names, *of.more))
