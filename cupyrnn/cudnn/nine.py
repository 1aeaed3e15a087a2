"""cuDNN 9, through its library."""

from __future__ import annotations

from ..checks.arrays import address, tf32_allowed
from .descriptors import CudnnCall, Lengths, Pair, Triple, all_lengths
from .handles import Descriptors, Enter
from .library import INFERENCE, TRAINING, WGRAD_ADD, Library


class Nine(Descriptors):
    """The descriptors and calls of cuDNN 9."""

    def _describe(self, enter: Enter, run: CudnnCall, dtype_name: str, lengths: Lengths) -> None:
        import cupy

        net, sizes, engine = run
        library: Library = self._library
        # cuDNN takes the lengths from the descriptors; old versions read this copy.
        self._lengths = None if lengths is None else cupy.asarray(lengths)
        steps, out, rows = all_lengths(sizes, lengths), net.P, (net.L * net.D, sizes.B)
        is_lstm = net.rnn_mode == "lstm"
        self.rnn = enter(library.rnn(run, dtype_name, dropout=self._dropout, tf32=tf32_allowed()))
        if engine == "cudnn_persist_dynamic":
            # Its kernels are compiled for this net, device and batch, and stay with `rnn`.
            self._call("cudnnBuildRNNDynamic", self.handle, self.rnn, sizes.B)
        self._x = enter(library.data(dtype_name, sizes.T, net.I, steps))
        self._y = enter(library.data(dtype_name, sizes.T, net.D * out, steps))
        self._h = enter(library.tensor(dtype_name, (*rows, out)))
        self._c = enter(library.tensor(dtype_name, (*rows, net.H))) if is_lstm else None
        self.params_bytes = library.weight_space_size(self.handle, self.rnn)
        self._mode = TRAINING if sizes.is_training else INFERENCE
        self.work_bytes, reserve = library.temp_space_sizes(
            self.handle, self.rnn, self._mode, self._x
        )
        self.reserve_bytes = reserve if sizes.is_training else 0

    def _spaces(self, w: int, work: int, reserve: int) -> tuple[int, ...]:
        weights = self.params_bytes, w
        return (*weights, max(self.work_bytes, 1), work, self.reserve_bytes, reserve)

    def forward(self, x: int, y: int, h: Pair, c: Pair, w: int, work: int, reserve: int) -> None:
        """Run forward; `h` and `c` are the first and the last states."""
        self._call(
            "cudnnRNNForward",
            *(self.handle, self.rnn, self._mode, address(self._lengths)),
            *(self._x, x, self._y, y, self._h, *h, self._c, *c),
            *self._spaces(w, work, reserve),
        )

    def backward_data(
        self, y: int, dy: int, dx: int, h: Triple, c: Triple, w: int, work: int, reserve: int
    ) -> None:
        """Compute gradients. `h`, `c`: first states, gradients of last and of first states."""
        self._call(
            "cudnnRNNBackwardData_v8",
            *(self.handle, self.rnn, address(self._lengths)),
            *(self._y, y, dy, self._x, dx, self._h, *h, self._c, *c),
            *self._spaces(w, work, reserve),
        )

    def backward_weights(self, x: int, hx: int, y: int, dw: int, work: int, reserve: int) -> None:
        """Add the gradient of the weights to `dw`. `backward_data` must have run before."""
        self._call(
            "cudnnRNNBackwardWeights_v8",
            *(self.handle, self.rnn, WGRAD_ADD, address(self._lengths)),
            *(self._x, x, self._h, hx, self._y, y),
            *self._spaces(dw, work, reserve),
        )
