"""cuDNN 9, through its library."""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack
from functools import cache
from typing import Any

import numpy as np

from ..checks.arrays import address, tf32_allowed
from .descriptors import CudnnCall, Lengths, Pair, Triple, all_lengths
from .handles import Handle, Handles
from .library import INFERENCE, TRAINING, WGRAD_ADD, Library


class Nine:
    """
    The descriptors and calls of cuDNN for all calls that differ only in addresses and seeds.

    Attributes
    ----------
    params_bytes, work_bytes, reserve_bytes : int
        The sizes of the memory that a call needs; `reserve_bytes` is 0 in inference.
    """

    def __init__(
        self, library: Library, handle: Handle, net: CudnnCall, dtype_name: str, lengths: Lengths
    ) -> None:
        import cupy

        self._library, self._call = library, library.call
        self._seeded, self.handle, self._rate = handle.seeded, handle.address, net.dropout
        # cuDNN takes the lengths from the descriptors; old versions read this copy.
        self._lengths = None if lengths is None else cupy.asarray(lengths)
        steps, out, rows = all_lengths(net, lengths), net.P, (net.L * net.D, net.B)
        is_lstm = net.rnn_mode == "lstm"
        with ExitStack() as stack:
            enter = stack.enter_context
            dropout = enter(self._dropout(net))
            self.rnn = enter(library.rnn(net, dtype_name, dropout=dropout, tf32=tf32_allowed()))
            if net.engine == "cudnn_persist_dynamic":
                # Its kernels are compiled for this net, device and batch, and stay with `rnn`.
                self._call("cudnnBuildRNNDynamic", self.handle, self.rnn, net.B)
            self._x = enter(library.data(dtype_name, net.T, net.I, steps))
            self._y = enter(library.data(dtype_name, net.T, net.D * out, steps))
            self._h = enter(library.tensor(dtype_name, (*rows, out)))
            self._c = enter(library.tensor(dtype_name, (*rows, net.H))) if is_lstm else None
            self.params_bytes = library.weight_space_size(self.handle, self.rnn)
            self._mode = TRAINING if net.is_training else INFERENCE
            self.work_bytes, reserve = library.temp_space_sizes(
                self.handle, self.rnn, self._mode, self._x
            )
            self.reserve_bytes = reserve if net.is_training else 0
            self._open = stack.pop_all()

    def close(self) -> None:
        """Destroy the descriptors."""
        self._open.close()

    def _dropout(self, net: CudnnCall) -> AbstractContextManager[int]:
        if not net.drops:
            return self._library.dropout(self.handle, 0.0, 0, 0, 0)
        import cupy

        size = self._library.dropout_states_size(self.handle)
        # `begin` fills them. In a backward call nothing reads them: the mask is in the reserve.
        self._states = cupy.empty(size, np.uint8)
        return self._library.dropout(self.handle, net.dropout, address(self._states), size, None)

    def begin(self, seed: int | None) -> None:
        """Use the current stream for the next calls, and `seed` for the dropout masks."""
        import cupy

        stream = cupy.cuda.get_current_stream().ptr
        self._call("cudnnSetStream", self.handle, stream)
        if seed is not None:
            # Drawing changes the states, and a copy costs less than new ones.
            self._states[...] = self._seeded.get((stream, seed), lambda: self._initial(seed))

    def _initial(self, seed: int) -> Any:
        """Return the generator's states for a seed before anything is drawn."""
        import cupy

        states = cupy.empty(self._states.size, np.uint8)
        with self._library.dropout(self.handle, self._rate, address(states), states.size, seed):
            return states

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


@cache
def handles(library: Library) -> Handles:
    """Return the handles of a library."""
    return Handles(
        lambda: library.create("cudnnCreate"), lambda handle: library.call("cudnnDestroy", handle)
    )
