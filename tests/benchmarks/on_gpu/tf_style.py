"""BlockLSTM and BlockLSTMGrad as TensorFlow launches them on a GPU."""

from __future__ import annotations

from typing import Any

import numpy as np

import cupyrnn

from . import problem
from .problem import PEEPHOLES
from .timing import Job, Run


def _elementwise(name: str, inputs: str, expression: str, vectors: str = "") -> str:
    """Return a kernel that writes an expression of arrays [rows, H] and vectors [H]."""
    arrays, columns = inputs.split(), vectors.split()
    pointers = "".join(f", const T* {a}_" for a in (*arrays, *columns))
    reads = "".join(f"    const A {a} = wide({a}_[k]);\n" for a in arrays)
    reads += "".join(f"    const A {a} = wide({a}_[k % H]);\n" for a in columns)
    return f"""
template <typename T> __global__ void {name}(T* out{pointers}, long long n, long long H)
{{
    typedef typename Acc<T>::type A;
    const long long k = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (k >= n) return;
{reads}    store(out + k, {expression});
}}
"""


_ELEMENTWISE = {
    "tf_add": ("a b", "a + b"),
    "tf_do": ("o dh co", "o * (A(1) - o) * dh * co"),
    "tf_dcs": ("co dh o dcs", "(A(1) - co * co) * dh * o + dcs"),
    "tf_dcs_peephole": ("dcs d_o", "dcs + d_o * wco", "wco"),
    "tf_dci": ("ci dcs i", "(A(1) - ci * ci) * dcs * i"),
    # di from (i, dcs, ci), df from (f, dcs, cs_prev)
    "tf_dsigmoid": ("s dcs factor", "s * (A(1) - s) * dcs * factor"),
    "tf_cs_prev": ("dcs f", "dcs * f"),
    "tf_cs_prev_peephole": ("dcs di df", "dcs + di * wci + df * wcf", "wci wcf"),
}

_OTHERS = r"""
// Copies [rows, columns] between arrays of other widths.
template <typename T> __global__ void tf_copy(
    T* to, const T* from, long long rows, long long columns,
    long long to_width, long long from_width, long long to_column, long long from_column)
{
    const long long k = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (k >= rows * columns) return;
    const long long row = k / columns, column = k % columns;
    to[row * to_width + to_column + column] = from[row * from_width + from_column + column];
}

// xh[B, I+H] = [x, h]
template <typename T> __global__ void tf_concat(
    T* xh, const T* x, const T* h, long long n, long long I, long long H)
{
    const long long k = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (k >= n) return;
    const long long row = k / (I + H), column = k % (I + H);
    xh[k] = column < I ? x[row * I + column] : h[row * H + column - I];
}

template <typename T> __global__ void tf_gates(
    T* i, T* cs, T* f, T* o, T* ci, T* co, T* h,   // [B, H], written
    const T* gates, const T* b,                    // [B, 4*H], [4*H], read; order ifco
    const T* wci, const T* wcf, const T* wco,      // [H], read; all null: no peepholes
    const T* cs_prev, long long n, long long H)
{
    typedef typename Acc<T>::type A;
    const long long k = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (k >= n) return;
    const long long c = k % H;
    const T* z = gates + k / H * 4 * H + c;
    const A before = wide(cs_prev[k]);
    A zi = wide(z[0]) + wide(b[c]), zf = wide(z[H]) + wide(b[H + c]);
    A zci = wide(z[2 * H]) + wide(b[2 * H + c]), zo = wide(z[3 * H]) + wide(b[3 * H + c]);
    if (wci) {
        zi += before * wide(wci[c]);
        zf += before * wide(wcf[c]);
    }
    const A i_ = sigmoid(zi), f_ = sigmoid(zf), ci_ = tanh_(zci);
    const A cs_ = i_ * ci_ + f_ * before;
    if (wco) zo += cs_ * wide(wco[c]);
    const A o_ = sigmoid(zo), co_ = tanh_(cs_);
    store(i + k, i_);
    store(cs + k, cs_);
    store(f + k, f_);
    store(o + k, o_);
    store(ci + k, ci_);
    store(co + k, co_);
    store(h + k, o_ * co_);
}

// sums[columns] += the sums over the rows of a, or of a * b.
template <typename T> __global__ void tf_add_sums(
    T* sums, const T* a, const T* b, long long rows, long long columns)
{
    typedef typename Acc<T>::type A;
    __shared__ A shared[32][33];
    const long long column = (long long)blockIdx.x * 32 + threadIdx.x;
    A sum = A(0);
    if (column < columns)
        for (long long row = threadIdx.y; row < rows; row += 32) {
            const A v = wide(a[row * columns + column]);
            sum += b ? v * wide(b[row * columns + column]) : v;
        }
    shared[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y == 0 && column < columns) {
        for (int k = 1; k < 32; ++k) sum += shared[k][threadIdx.x];
        store(sums + column, wide(sums[column]) + sum);
    }
}
"""

TF_SOURCE = "".join(_elementwise(name, *parts) for name, parts in _ELEMENTWISE.items()) + _OTHERS
TF_KERNELS = tuple(
    f"{name}<{{T}}>" for name in (*_ELEMENTWISE, "tf_copy", "tf_concat", "tf_gates", "tf_add_sums")
)


class TFStyle:
    """
    TensorFlow's BlockLSTM and BlockLSTMGrad, launch for launch as it runs them on a GPU.

    Forward a step is 3 launches: [x, h] is put together, one product, all gates. Backward nothing
    is hoisted out of the time loop and every expression is a launch of its own, the products for
    the gradients of x and w among them. All intermediates have the dtype of the inputs.

    The launches are lists of functions and arguments, made once and then gone through.
    """

    def __init__(self, cupy: Any, inputs: dict[str, Any], peephole: bool) -> None:
        self.cupy, self.peephole, self.inputs = cupy, peephole, inputs
        self.T, self.B, self.I = inputs["x"].shape
        self.H = inputs["cs_prev"].shape[1]
        self.dtype = inputs["x"].dtype
        self.kept: list[Any] = []  # what the launches point to
        self.saved = cupyrnn.LSTMOutputs(
            *(cupy.empty((self.T, self.B, self.H), self.dtype) for _ in range(7))
        )
        self.forward_commands = self._forward()
        self.setup_commands, self.backward_commands = self._backward()

    def _launch(
        self, name: str, n: int, *args: Any, columns: int | None = None
    ) -> tuple[Any, tuple[Any, ...]]:
        """Return a launch of n threads, or of blocks of (32, 32) over the columns."""
        from cupyrnn.kernels.compile import kernel
        from cupyrnn.kernels.launch import _addresses

        launch = kernel(TF_SOURCE, TF_KERNELS, self.dtype.name, f"{name}<{{T}}>")
        kept, addresses = _addresses(args)
        self.kept.append((args, kept, addresses))
        grid, block = ((-(-n // 256), 1, 1), (256, 1, 1))
        if columns is not None:
            grid, block = ((-(-columns // 32), 1, 1), (32, 32, 1))
        stream = self.cupy.cuda.get_current_stream().ptr
        numbers = (launch.kernel.ptr, *grid, *block, 0, stream, addresses.ctypes.data, 0)
        return self.cupy.cuda.driver.launchKernel, numbers

    def _op(self, name: str, *arrays: Any) -> tuple[Any, tuple[Any, ...]]:
        n = self.B * self.H
        return self._launch(name, n, *arrays, np.int64(n), np.int64(self.H))

    def _copy(
        self, to: Any, from_: Any, columns: int, to_column: int, from_column: int
    ) -> tuple[Any, tuple[Any, ...]]:
        sizes = (self.B, columns, to.shape[1], from_.shape[1], to_column, from_column)
        return self._launch("tf_copy", self.B * columns, to, from_, *map(np.int64, sizes))

    def _sums(self, sums: Any, a: Any, b: Any) -> tuple[Any, tuple[Any, ...]]:
        columns = a.shape[1]
        args = (sums, a, b, np.int64(self.B), np.int64(columns))
        return self._launch("tf_add_sums", 1, *args, columns=columns)

    def _product(self, a: Any, b: Any, out: Any, accumulate: bool) -> tuple[Any, tuple[Any, ...]]:
        from cupyrnn.kernels.blas import Product

        product = Product(a, b, out, accumulate=accumulate)
        self.kept.append(product)
        return product.run, (len(out), product.a, product.out)

    def _forward(self) -> list[list[Any]]:
        """Return the commands of each step."""
        x, w, b = (self.inputs[n] for n in ("x", "w", "b"))
        B, I, H = self.B, self.I, self.H
        xh = self.cupy.empty((B, I + H), self.dtype)
        gates = self.cupy.empty((B, 4 * H), self.dtype)
        vectors = [self.inputs[n] if self.peephole else None for n in PEEPHOLES]
        size, n = B * (I + H), np.int64(B * H)
        product = self._product(xh, w, gates, False)
        steps = []
        for t in range(self.T):
            cs = self.saved.cs[t - 1] if t else self.inputs["cs_prev"]
            h = self.saved.h[t - 1] if t else self.inputs["h_prev"]
            sizes = (np.int64(size), np.int64(I), np.int64(H))
            outputs = [a[t] for a in self.saved]
            steps.append(
                [
                    self._launch("tf_concat", size, xh, x[t], h, *sizes),
                    product,
                    self._launch(
                        "tf_gates", B * H, *outputs, gates, b, *vectors, cs, n, np.int64(H)
                    ),
                ]
            )
        return steps

    def _backward(self) -> tuple[list[Any], list[list[Any]]]:
        """Return the commands that zero the sums, and those of each step, last step first."""
        B, I, H = self.B, self.I, self.H
        given = self.inputs
        wci, wcf, wco = (given[n] for n in PEEPHOLES)

        def empty(*shape: int) -> Any:
            return self.cupy.empty(shape, self.dtype)

        dh, dcs, d_o, di, dci, df = (empty(B, H) for _ in range(6))
        no_cs_grad = self.cupy.zeros((B, H), self.dtype)
        dgates, xh, xh_grad = empty(B, 4 * H), empty(B, I + H), empty(B, I + H)
        g = {"x": empty(self.T, B, I), "cs_prev": empty(B, H), "h_prev": empty(B, H)}
        g |= {"w": empty(I + H, 4 * H), "b": empty(4 * H)} | {n: empty(H) for n in PEEPHOLES}
        self.grads = g
        setup = [(a.fill, (0,)) for name, a in g.items() if name != "x"]
        dx_product = self._product(dgates, given["w"].T, xh_grad, False)
        dw_product = self._product(xh.T, dgates, g["w"], True)
        steps = []
        for t in range(self.T - 1, -1, -1):
            i, cs, f, o, ci, co, _ = (a[t] for a in self.saved)
            cs_prev = self.saved.cs[t - 1] if t else given["cs_prev"]
            h_prev = self.saved.h[t - 1] if t else given["h_prev"]
            step = [
                self._op("tf_add", dh, given["h_grad"][t], g["h_prev"]),
                self._op("tf_add", dcs, no_cs_grad, g["cs_prev"]),
                self._op("tf_do", d_o, o, dh, co),
                self._op("tf_dcs", dcs, co, dh, o, dcs),
            ]
            if self.peephole:
                step.append(self._op("tf_dcs_peephole", dcs, dcs, d_o, wco))
            step += [
                self._op("tf_dci", dci, ci, dcs, i),
                self._op("tf_dsigmoid", df, f, dcs, cs_prev),
                self._op("tf_dsigmoid", di, i, dcs, ci),
                *(self._copy(dgates, d, H, k * H, 0) for k, d in enumerate((di, df, dci, d_o))),
                self._op("tf_cs_prev", g["cs_prev"], dcs, f),
            ]
            if self.peephole:
                out = g["cs_prev"]
                step.append(self._op("tf_cs_prev_peephole", out, out, di, df, wci, wcf))
            step += [
                dx_product,
                self._copy(xh, given["x"][t], I, 0, 0),
                self._copy(xh, h_prev, H, I, 0),
                self._copy(g["x"][t], xh_grad, I, 0, 0),
                self._copy(g["h_prev"], xh_grad, H, 0, I),
                dw_product,
                self._sums(g["b"], dgates, None),
            ]
            if self.peephole:
                step += [
                    self._sums(g["wci"], di, cs_prev),
                    self._sums(g["wcf"], df, cs_prev),
                    self._sums(g["wco"], d_o, cs),
                ]
            steps.append(step)
        return setup, steps

    def run(self, what: str, steps: int) -> Run:
        """Return a run of the forward or backward pass over the first or last so many steps."""
        setup, commands = (
            ([], self.forward_commands)
            if what == "forward"
            else (self.setup_commands, self.backward_commands)
        )
        flat = setup + [command for step in commands[:steps] for command in step]

        def call(_: Any, _alive: Any = self.kept) -> None:
            for launch, args in flat:
                launch(*args)

        return Run(call)


def tf_jobs(cupy: Any, sets: list[dict[str, Any]], peephole: bool) -> dict[str, Job]:
    contestants = [TFStyle(cupy, inputs, peephole) for inputs in sets]
    T = contestants[0].T
    steps = min(T, problem.TF_SAMPLE)
    for c in contestants:
        c.run("forward", T).call(None)  # what the backward pass reads
    return {
        what: Job(
            [c.run(what, T) for c in contestants],
            [c.run(what, steps) for c in contestants],
            T / steps,
        )
        for what in ("forward", "backward")
    }
