"""The CUDA twin of ``slstm.py``: the gates, and the cell for the frames."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cupyrnn.kernels import persistent
from cupyrnn.kernels.cell import CudaCell
from cupyrnn.kernels.recurrence import backward, forward

if TYPE_CHECKING:
    from cupyrnn.cells.contract import BackwardRun, ForwardRun

    from ..slstm import SLSTM

GATES = r"""
template <typename A> struct SLSTMGates { A i, f, cz, o, c, n, m, h; };

template <typename A>
__device__ __forceinline__ SLSTMGates<A> slstm_gates(
    A zi, A zf, A zc, A zo, A c_prev, A n_prev, A m_prev)
{
    SLSTMGates<A> g;
    const A p = zf + m_prev;
    g.m = zi > p ? zi : p;
    g.i = exp_(zi - g.m);
    g.f = exp_(p - g.m);
    g.cz = tanh_(zc);
    g.o = sigmoid(zo);
    g.c = g.f * c_prev + g.i * g.cz;
    g.n = g.f * n_prev + g.i;
    g.h = g.o * g.c / g.n;
    return g;
}

template <typename A> struct SLSTMRead { A i, f, cz, o, c, n, c_prev, n_prev; };
template <typename A> struct SLSTMGateGradients { A di, df, dcz, do_, dc, dn; };

template <typename A>
__device__ __forceinline__ SLSTMGateGradients<A> slstm_gate_gradients(
    const SLSTMRead<A>& s, A dh, A dc, A dn, A dm)
{
    const A i = s.i, f = s.f, cz = s.cz, o = s.o, c = s.c, n = s.n;
    SLSTMGateGradients<A> g;
    g.do_ = dh * c / n * o * (A(1) - o);
    dc += dh * o / n;
    dn = dn - dh * o * c / (n * n);
    g.dcz = dc * i * (A(1) - cz * cz);
    g.di = (dc * cz + dn) * i;
    g.df = (dc * s.c_prev + dn * s.n_prev) * f;
    dm = dm - (g.di + g.df);
    if (f < A(1)) g.di += dm;  // zi > p
    else g.df += dm;
    g.dc = dc * f;
    g.dn = dn * f;
    return g;
}
"""

STRUCT = r"""
template <typename A> struct SLSTM : CellDefaults {
    static const int PRODUCTS = 1, SAVED = 8, READ = 8, STATES = 4, CARRIED = 4;
    static const int GRADIENTS = 4, COTANGENTS = 4;
    static __device__ constexpr int width(int) { return 4; }
    static __device__ constexpr int deltas(int) { return 4; }
    static __device__ constexpr int saved_before(int p) { return p ? SAVED : 0; }
    static __device__ constexpr int reads(int) { return 14; }  // all but h
    static __device__ constexpr int writes(int) { return 14; }
    static __device__ constexpr int updates(int) { return 14; }
    struct Unit { A b[4]; };
    struct State { A h, c, n, m; };
    typedef SLSTMGates<A> Saved;
    typedef SLSTMRead<A> Read;
    typedef SLSTMRead<A> Factors;
    struct Gradients { A h, c, n, m; };

    const A* b;  // [4*H]

    __device__ __forceinline__ Unit unit(int u, int H) const
    {
        return {{b[u], b[H + u], b[2 * H + u], b[3 * H + u]}};
    }
    __device__ __forceinline__ A forward(
        Product<0>, const Unit& v, const A* z, const A* sums, State& state, Saved& saved) const
    {
        saved = slstm_gates<A>(
            z[0] + v.b[0] + sums[0], z[1] + v.b[1] + sums[1], z[2] + v.b[2] + sums[2],
            z[3] + v.b[3] + sums[3], state.c, state.n, state.m);
        state = {saved.h, saved.c, saved.n, saved.m};
        return saved.h;
    }
    __device__ __forceinline__ Factors factors(const Unit&, const Read& s) const { return s; }
    __device__ __forceinline__ A backward(
        Product<0>, const Factors& s, A dh, const A* cotangents, Gradients& gradients, A* d) const
    {
        const SLSTMGateGradients<A> g = slstm_gate_gradients<A>(
            s, dh, gradients.c + cotangents[1], gradients.n + cotangents[2],
            gradients.m + cotangents[3]);
        gradients.c = g.dc, gradients.n = g.dn, gradients.m = g.df;
        d[0] = g.di, d[1] = g.df, d[2] = g.dcz, d[3] = g.do_;
        return A(0);
    }
};
"""

CELL = CudaCell(
    name="slstm", struct="SLSTM", source=GATES + STRUCT, fields={"b": "pointer"}, widths=(4,)
)
FORWARD_KERNELS, BACKWARD_KERNELS = persistent.kernels_of(CELL)
SOURCE, KERNELS = FORWARD_KERNELS.loop


def forward_steps(cell: SLSTM, run: ForwardRun) -> None:
    """The recurrence over t steps."""
    forward(FORWARD_KERNELS, CELL.record(run.xw[0].dtype, cell.b), run)


def backward_steps(cell: SLSTM, run: BackwardRun) -> None:
    """The recurrence over t steps, backwards."""
    read = (*run.saved[:6], run.before.c, run.before.n)
    backward(BACKWARD_KERNELS, CELL.record(run.carried[0].dtype, cell.b), run, read)
