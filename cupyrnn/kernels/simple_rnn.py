"""The CUDA twin of ``cells/simple_rnn.py``: the cell for the frames."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import persistent
from .cell import CudaCell, DeviceCell
from .recurrence import backward, forward

if TYPE_CHECKING:
    from ..cells.contract import BackwardRun, ForwardRun
    from ..cells.simple_rnn import SimpleRNN

STRUCT = r"""
template <typename A> struct SimpleRNN : CellDefaults {
    static const int PRODUCTS = 1, SAVED = 1, READ = 1, STATES = 1, CARRIED = 1;
    static const int GRADIENTS = 1;
    static __device__ constexpr int width(int) { return 1; }
    static __device__ constexpr int deltas(int) { return 1; }
    static __device__ constexpr int saved_before(int p) { return p; }
    static __device__ constexpr int reads(int) { return 0; }
    static __device__ constexpr int writes(int) { return 0; }
    static __device__ constexpr int updates(int) { return 0; }
    struct Unit { A b; };
    struct State { A h; };
    struct Saved { A h; };
    struct Read { A h; };
    struct Factors { A slope; };
    struct Gradients { A h; };

    const A *b, *b_more;  // [H]: the bias, and what is added to it; null: zeros
    bool relu;
    bool stored;  // whether vectors are in the storage type

    __device__ __forceinline__ Unit unit(int u, int) const
    {
        Unit v = {};
        if (b) v.b = number_of(b, stored, u);
        if (b_more) v.b += number_of(b_more, stored, u);
        return v;
    }
    __device__ __forceinline__ A forward(
        Product<0>, const Unit& v, const A* z, const A* sums, State& state, Saved& saved) const
    {
        const A sum = z[0] + sums[0] + v.b;
        // A comparison as in gate_of.
        return state.h = saved.h = relu ? (sum <= A(0) ? A(0) : sum) : tanh_(sum);
    }
    __device__ __forceinline__ Factors factors(const Unit&, const Read& s) const
    {
        return {relu ? A(s.h > A(0)) : A(1) - s.h * s.h};
    }
    __device__ __forceinline__ A backward(
        Product<0>, const Factors& k, A dh, const A*, Gradients&, A* d) const
    {
        d[0] = k.slope * dh;
        return A(0);
    }
};
"""

CELL = CudaCell(
    name="simple_rnn",
    struct="SimpleRNN",
    source=STRUCT,
    fields={"b": "pointer", "b_more": "pointer", "relu": "?", "stored": "?"},
    widths=(1,),
)
FORWARD_KERNELS, BACKWARD_KERNELS = persistent.kernels_of(CELL)
SOURCE, KERNELS = FORWARD_KERNELS.loop


def _of(cell: SimpleRNN) -> tuple[DeviceCell, list[Any]]:
    """Return the cell with its attributes, and its vectors."""
    return in_place(cell.relu), [cell.b, None]


def forward_steps(cell: SimpleRNN, run: ForwardRun) -> None:
    """The recurrence over t steps."""
    forward(*_of(cell), run)


def backward_steps(cell: SimpleRNN, run: BackwardRun) -> None:
    """The recurrence over t steps, backwards."""
    backward(*_of(cell), run)


def in_place(relu: bool) -> DeviceCell:
    """Return the cell with this activation, for arrays of a caller."""
    kernels = FORWARD_KERNELS, BACKWARD_KERNELS
    return DeviceCell(kernels, (relu,), ("b", "b_more"), (0,), None)
