"""cuDNN 9, through its library."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

import numpy as np

from .descriptors import address, all_lengths, dropout_seed, tf32
from .library import INFERENCE, TRAINING, WGRAD_ADD

if TYPE_CHECKING:
    from ..params import Net
    from .descriptors import Enter, Lengths, Pair, Purpose, Triple
    from .library import Library


class Nine:
    """cuDNN 9."""

    def __init__(
        self,
        library: Library,
        enter: Enter,
        net: Net,
        dtype_name: str,
        lengths: Lengths,
        purpose: Purpose,
    ) -> None:
        import cupy

        self._call = library.call
        self.handle = handle = library.handles.get(cupy.cuda.get_device_id())
        library.call("cudnnSetStream", handle, cupy.cuda.get_current_stream().ptr)
        dropout = enter(self._dropout(library, net, purpose))
        out = net.P
        self.rnn = enter(
            library.rnn(
                dtype_name,
                net.rnn_mode,
                skip=net.skip,
                bidirectional=net.D == 2,
                input_size=net.I,
                hidden_size=net.H,
                proj_size=out,
                num_layers=net.L,
                dropout=dropout,
                tf32=tf32(),
            )
        )
        steps = all_lengths(net, lengths)
        self._x = enter(library.data(dtype_name, net.T, net.I, steps))
        self._y = enter(library.data(dtype_name, net.T, net.D * out, steps))
        rows = net.L * net.D, net.B
        self._h = enter(library.tensor(dtype_name, (*rows, out)))
        is_lstm = net.rnn_mode == "lstm"
        self._c = enter(library.tensor(dtype_name, (*rows, net.H))) if is_lstm else None
        # cuDNN has them from the descriptors; old versions read this copy of them.
        kept = lengths is not None and purpose != "sizes"
        self._lengths = cupy.asarray(lengths) if kept else None
        self.params_bytes = library.weight_space_size(handle, self.rnn)
        self._mode = TRAINING if net.is_training else INFERENCE
        self.work_bytes, reserve = library.temp_space_sizes(handle, self.rnn, self._mode, self._x)
        self.reserve_bytes = reserve if net.is_training else 0

    def _dropout(self, library: Library, net: Net, purpose: Purpose) -> AbstractContextManager[int]:
        rate = net.dropout if net.drops else 0.0
        if not net.drops or purpose == "sizes":
            return library.dropout(self.handle, rate, 0, 0, 0)
        import cupy

        size = library.dropout_states_size(self.handle)
        self._states = cupy.empty(size, np.uint8)
        # Backward there must be states, but nothing reads them: the mask is in the reserve.
        seed = dropout_seed(net) if purpose == "forward" else None
        return library.dropout(self.handle, rate, address(self._states), size, seed)

    def _spaces(self, w: int, work: int, reserve: int) -> tuple[int, ...]:
        weights = self.params_bytes, w
        return (*weights, max(self.work_bytes, 1), work, self.reserve_bytes, reserve)

    def forward(self, x: int, y: int, h: Pair, c: Pair, w: int, work: int, reserve: int) -> None:
        self._call(
            "cudnnRNNForward",
            *(self.handle, self.rnn, self._mode, address(self._lengths)),
            *(self._x, x, self._y, y, self._h, *h, self._c, *c),
            *self._spaces(w, work, reserve),
        )

    def backward_data(
        self, y: int, dy: int, dx: int, h: Triple, c: Triple, w: int, work: int, reserve: int
    ) -> None:
        self._call(
            "cudnnRNNBackwardData_v8",
            *(self.handle, self.rnn, address(self._lengths)),
            *(self._y, y, dy, self._x, dx, self._h, *h, self._c, *c),
            *self._spaces(w, work, reserve),
        )

    def backward_weights(self, x: int, hx: int, y: int, dw: int, work: int, reserve: int) -> None:
        self._call(
            "cudnnRNNBackwardWeights_v8",
            *(self.handle, self.rnn, WGRAD_ADD, address(self._lengths)),
            *(self._x, x, self._h, hx, self._y, y),
            *self._spaces(dw, work, reserve),
        )
