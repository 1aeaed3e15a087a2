"""A cell as the kernels see it: a C++ struct, its size, and its fields."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from .._typing import Array
from ..arithmetic.dual import real_dtype
from ..arithmetic.gates import HardSigmoid
from ..checks.arrays import address, strided_address

# A cell is a struct template Name<A>; A is the type of the computation. A launch passes it by
# value. Its members are its attributes, and its weights except the matrices. It has
#
#   int PRODUCTS                products of a step with recurrent matrices: one or two; the first
#                               one multiplies h_prev
#   int width(int p)            columns of a unit in product p, and in its z
#   int deltas(int p)           columns of a unit in the gradient of z; at least width(p)
#   int SAVED, saved_before(p)  arrays that a step saves, and how many of them before product p
#   int READ                    arrays of a step that the gradient reads
#   int STATES, CARRIED         numbers in State; the first CARRIED pass from step to step
#   int reads(p), writes(p)     the states, as bits, that the kernel after product p reads, writes
#   int updates(p)              the Gradients, as bits, that the kernel before product p writes
#   int GRADIENTS               numbers in Gradients
#   State, Saved, Read, Gradients
#                               structs of as many numbers, by name; h first in State, Gradients
#   Unit unit(u, H)             the weights of unit u, except the matrices
#   A forward(Product<p>, unit, z, sums, State& state, Saved& saved)
#                               computes what follows product p; returns the next product's factor
#   Factors factors(unit, read) the parts of the gradient that depend on saved values only
#   A backward(Product<p>, factors, dh, cotangents, Gradients& gradients, deltas)
#                               goes back to product p: dh is the gradient of the result of what
#                               follows it, with the caller's gradient of h; returns, for p = 0,
#                               the part of the gradient of h_prev that passes no product
#
# and, unless it leaves them to ``CellDefaults``,
#
#   bool APART                  whether products are not added to z, as in `CudaCell`
#   int COTANGENTS              gradients that the caller passes, h's first
#   int BEFORE                  how many arrays of READ, the last ones, are states before a step;
#                               if 0, a driver passes all of them row by row
#   int column(int k)           where column k of z begins in a row, in units of H
#   int weight(int k)           where column k of a matrix begins
#   int place(int k)            where delta k begins
#   void plain()                sets the optional members to zeros or null pointers
SOURCE = r"""
__device__ constexpr int larger_of(int a, int b) { return a > b ? a : b; }

// The number of a product of a step.
template <int P> struct Product { static const int NUMBER = P; };

template <typename T> struct Weights { const T* w; long long row, column; };  // its strides

// All arrays of a cell, forwards,
template <template <typename> class Cell, typename T> struct Forward {
    typedef typename Acc<T>::type A;
    typedef Cell<A> C;
    static const bool BACK = false;
    // The numbers that a thread reads in a step: z.
    typedef A Number;
    static const int NUMBERS = C::width(0) + (C::PRODUCTS == 2 ? C::width(1) : 0);
    Weights<T> w[C::PRODUCTS];  // [H, width * H], read; null in the loop
    const A* z[C::PRODUCTS];    // [n, width * H], read: x @ w_x
    A* states[C::STATES];       // [B, H], updated, not rounded
    T* saved[C::SAVED];         // [n, H], written
    // A launch over all steps can use arrays of the caller instead of `states`: it reads `first`
    // and writes `last`. If null, the first states are zeros, and the last ones are not written.
    const T* first[C::CARRIED];  // [B, H]
    T* last[C::CARRIED];         // [B, H]
    // If not null, h of each step is written here too. Its rows begin output_row numbers apart.
    T* output;
    long long output_row;
};
// and backwards.
template <template <typename> class Cell, typename T> struct Backward {
    typedef typename Acc<T>::type A;
    typedef Cell<A> C;
    static const bool BACK = true;
    typedef T Number;
    static const int NUMBERS = C::READ + C::COTANGENTS;
    Weights<T> w[C::PRODUCTS];
    const T* read[C::READ];     // [n, H], read
    const T* cotangents[C::COTANGENTS];  // [n, H], read; null: zeros
    A* gradients[C::GRADIENTS]; // [B, H], updated
    T* deltas[C::PRODUCTS];     // [n, deltas * H], written
    // For a launch over all steps and the last C::BEFORE arrays: if first[k] is not null, read[k]
    // has the states after each step, and first[k] the states before the first step.
    const T* first[C::READ];     // [B, H]
    // The gradients of the last states (null: zeros) and of the first ones, if `gradients` is null.
    const T* last[C::GRADIENTS]; // [B, H]
    T* first_grads[C::GRADIENTS];  // [B, H]
    long long cotangent_row;     // how far apart the rows of cotangents[0] begin; 0: H
};

struct Steps {
    const long long* starts;  // [steps + 1], read: the first row of each step; null: s*B
    long long steps, B, H;
    long long back;           // 1: time runs backwards, step 0 has the last rows; not with starts
    uint4* zeros;             // if not null, `write_zeros` clears these 16 bytes
    // For padded rows: every step has B rows, in the order of time. Past the end of a sequence the
    // kernel writes zeros.
    const int* lengths;           // [B], the steps of each sequence; null: all steps
    const unsigned char* resets;  // [steps, B]: no state passes to a marked step; null: none is
    __device__ __forceinline__ void write_zeros() const
    {
        if (zeros && blockIdx.x + blockIdx.y + threadIdx.x == 0) *zeros = uint4();
    }
    __device__ __forceinline__ long long operator[](int s) const
    {
        return starts ? starts[s] : (back ? steps - 1 - s : s) * B;
    }
    __device__ __forceinline__ long long end(int s) const
    {
        return starts ? starts[s + 1] : (*this)[s] + B;
    }
    // How many steps have this row. No step has more rows than the one before it.
    __device__ __forceinline__ int length(int row) const
    {
        int some = 0, most = int(steps);
        if (!starts) return row < B ? most : 0;
        while (some < most) {
            const int middle = (some + most) / 2;
            if (row < end(middle) - (*this)[middle]) some = middle + 1;
            else most = middle;
        }
        return some;
    }
};

// The members of a cell that does not define its own.
struct CellDefaults {
    static const bool APART = false;
    static const int COTANGENTS = 1, BEFORE = 0;
    __device__ __forceinline__ int column(int k) const { return k; }
    __device__ __forceinline__ int weight(int k) const { return k; }
    __device__ __forceinline__ int place(int k) const { return k; }
    __device__ __forceinline__ void plain() {}
};

// Number n of a vector of weights: in the storage type, or in the type of the computation.
template <typename A>
__device__ __forceinline__ A number_of(const A* vector, bool stored, long long n)
{
    return stored ? A(wide(reinterpret_cast<const Stored*>(vector)[n])) : vector[n];
}

// A struct of numbers as an array of them.
template <typename A, typename S> __device__ __forceinline__ A* array_of(S& numbers)
{
    static_assert(sizeof(S) % sizeof(A) == 0, "numbers alone");
    return reinterpret_cast<A*>(&numbers);
}

template <typename A> __device__ __forceinline__ void clear(A* memory, int count)
{
    for (int n = threadIdx.x; n < count; n += blockDim.x) memory[n] = A(0.f);
}
"""

POINTER = np.uint64


class CudaCell(NamedTuple):
    """
    A cell in CUDA.

    Attributes
    ----------
    name
        The name of its module.
    struct
        The name of its C++ struct.
    source
        The CUDA source of the struct, and of everything that it needs.
    fields
        The members of the struct by name: "pointer", "real", "gate", or a dtype of NumPy.
    widths
        The number of columns of a unit in each product.
    apart
        Whether products are not added to z before the kernel.
    carries_h
        Whether the equations use h_prev outside the products.
    within
        The number of states that exist only within a step.
    optional
        The members that are zero or null in a plain cell, as set by ``plain()`` in C++.
    more
        The other kernels of the source, as templates.
    """

    name: str
    struct: str
    source: str
    fields: dict[str, Any]
    widths: tuple[int, ...]
    apart: bool = False
    carries_h: bool = False
    within: int = 0
    optional: tuple[str, ...] = ()
    more: tuple[str, ...] = ()

    def is_plain(self, struct: np.void) -> bool:
        """Return whether a struct uses no optional member; kernels may leave these out."""
        return not any(
            struct[name]["hard"] if self.fields[name] == "gate" else struct[name]
            for name in self.optional
        )

    def pack_struct(self, compute: np.dtype[Any], *values: Any) -> np.void:
        """Return the struct with these members, for a dtype of the computation."""
        members = zip(values, self.fields.values(), strict=True)
        # Padding bytes are zeros too, so that the same launch has the same bytes.
        found: Any = np.zeros((), _record(tuple(self.fields.items()), compute))
        found[()] = tuple(_word(v) if kind == "pointer" else v for v, kind in members)
        return found[()]  # type: ignore[no-any-return]


@cache
def _record(fields: tuple[tuple[str, Any], ...], compute: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype of a struct, laid out as C++ does."""
    real = real_dtype(compute)
    gate = np.dtype([("hard", "?"), ("slope", real), ("offset", real)], align=True)
    kinds = {"pointer": POINTER, "real": real, "gate": gate}
    return np.dtype([(name, kinds.get(kind, kind)) for name, kind in fields], align=True)


def _word(value: Array | int | None) -> int:
    return value if isinstance(value, int) else address(value)


def gate_members(gate: HardSigmoid | None) -> tuple[bool, float, float]:
    """Return a cell's gate as a member: hard, slope, offset."""
    return (gate is not None, *(gate or (0, 0)))


def words(*values: Array | int | None) -> np.void:
    """Return a struct of pointers and 64-bit integers."""
    return np.void(np.array([_word(v) for v in values], np.int64).tobytes())


def weights_of(matrices: Sequence[Array]) -> list[Any]:
    """Return matrices as ``Weights``: each one and its strides."""
    return [
        value
        for w in matrices
        for value in (strided_address(w), *(n // w.itemsize for n in w.strides))
    ]


class DeviceCell(NamedTuple):
    """
    A cell with its attributes, for launches over all steps that use the arrays of a caller.

    Attributes
    ----------
    kernels
        Forwards and backwards.
    attributes
        The members of its struct between the pointers and `stored`.
    vectors
        The names of its pointers, in order.
    read
        Which of the arrays that a step saves its gradient reads, in order.
    before
        The number of the state before the step that is the last of them; None for none.
    """

    kernels: tuple[Any, Any]
    attributes: tuple[Any, ...]
    vectors: tuple[str, ...]
    read: tuple[int, ...]
    before: int | None

    @property
    def cell(self) -> CudaCell:
        """The cell."""
        return self.kernels[0].cell  # type: ignore[no-any-return]

    def pack_struct(
        self, compute: np.dtype[Any], vectors: Sequence[Array | int | None], stored: bool
    ) -> np.void:
        """
        Return the struct.

        Parameters
        ----------
        vectors
            What its pointers point to, or their addresses.
        stored
            Whether vectors have the storage type, not the type of the computation.
        """
        return self.cell.pack_struct(compute, *vectors, *self.attributes, stored)
