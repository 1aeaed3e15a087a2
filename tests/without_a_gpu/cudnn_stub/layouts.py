"""The places of the matrices of the packed parameters in the real libraries."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable
from ctypes import c_int, c_int32, c_size_t, c_void_p
from typing import Any

from problems.nets import BI, LINEAR, SKIP, UNI, Case, params_size

import cupyrnn
from cupyrnn.cells.packed import GATES
from cupyrnn.cudnn import library as libcudnn

LAYOUTS = [
    Case(mode, 1, 1, I, H, L, direction, P, input_mode)
    for mode, (I, H), L, direction, P, input_mode in itertools.product(
        GATES, ((3, 5), (4, 4), (1, 2), (7, 1)), (1, 2, 3), (UNI, BI), (0, 1, 3), (LINEAR, SKIP)
    )
    if (input_mode == LINEAR or I == H) and (not P or (mode == "lstm" and H > P))
]
BASE = 1 << 20  # the address of the parameters
_PROTOTYPES = {
    "cudnnGetRNNWeightParams": (
        *(c_void_p, c_void_p, c_int32, c_size_t, c_void_p, c_int32),
        *(c_void_p,) * 4,
    ),
    "cudnnGetTensorNdDescriptor": (c_void_p, c_int, *(c_void_p,) * 4),
}

# The address of a piece, of the numbers of its layer and direction and of its matrix.
AddressOf = Callable[[Any, int, int], Any]


def assert_layout(case: Case, itemsize: int, size: int, address_of: AddressOf) -> None:
    """Check the size of the parameters, and that their pieces are where the package says."""
    assert size == params_size(case) * itemsize
    attributes: dict[str, Any] = case._asdict()
    names = ("rnn_mode", "input_mode", "direction", "num_proj")
    gates, kinds = GATES[case.rnn_mode], ("input", "recurrent", "projection")
    for piece in cupyrnn.cudnn_rnn_params_layout(
        case.L, case.H, case.I, **{n: attributes[n] for n in names}
    ):
        if piece.size:
            matrix = len(gates) * kinds.index(piece.kind.removesuffix("_bias"))
            matrix += gates.index(piece.gate) if piece.gate else 0
            found = address_of(piece, piece.layer * case.D + piece.direction, matrix)
            assert found == BASE + piece.offset * itemsize, (case, piece)


def address_in_nine(library: libcudnn.Library, handle: int, rnn: int) -> AddressOf:
    """Return a function that asks cuDNN 9 for an address, and compares the sizes of the piece."""
    for name, types in _PROTOTYPES.items():
        getattr(library._dll, name).argtypes = types
    size = library.weight_space_size(handle, rnn)

    def address_of(piece: Any, pseudo_layer: int, matrix: int) -> Any:
        addresses, one = (c_void_p(), c_void_p()), ("float32", (1, 1, 1))  # whatever it is
        data, rank, dims, strides = c_int(), c_int(), (c_int * 3)(), (c_int * 3)()
        with library.tensor(*one) as m, library.tensor(*one) as b:
            library.call(
                "cudnnGetRNNWeightParams",
                *(handle, rnn, pseudo_layer, size, BASE, matrix),
                *(m, ctypes.byref(addresses[0]), b, ctypes.byref(addresses[1])),
            )
            tensor = b if piece.kind.endswith("bias") else m
            pointers = (ctypes.byref(p) for p in (data, rank, dims, strides))
            library.call("cudnnGetTensorNdDescriptor", tensor, 3, *pointers)
        assert [n for n in dims if n > 1] == [n for n in piece.shape if n > 1], piece
        return addresses[tensor == b].value

    return address_of
