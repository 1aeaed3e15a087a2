"""The places of the matrices of the packed parameters in the real library."""

from __future__ import annotations

import ctypes
import itertools
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


_PROTOTYPES = {
    "cudnnGetRNNWeightParams": (
        *(c_void_p, c_void_p, c_int32, c_size_t, c_void_p, c_int32),
        *(c_void_p,) * 4,
    ),
    "cudnnGetTensorNdDescriptor": (c_void_p, c_int, *(c_void_p,) * 4),
}


# The address of a matrix or bias of the weights, and its sizes.
Place = tuple[int, tuple[int, ...]]


def weight_params(
    library: libcudnn.Library,
    handle: int,
    rnn: int,
    pseudo_layer: int,
    weights: tuple[int, int],
    matrix: int,
) -> list[Place | None]:
    """Return the places of a matrix and its bias; `weights` is the size and the address of all."""
    for name, types in _PROTOTYPES.items():
        getattr(library._dll, name).argtypes = types

    def at(address: c_void_p, tensor: int) -> Place | None:
        if not address.value:
            return None
        data, rank, dims, strides = c_int(), c_int(), (c_int * 3)(), (c_int * 3)()
        pointers = (ctypes.byref(p) for p in (data, rank, dims, strides))
        library.call("cudnnGetTensorNdDescriptor", tensor, 3, *pointers)
        return address.value, tuple(dims)

    one = "float32", (1, 1, 1)  # whatever it is
    with library.tensor(*one) as m, library.tensor(*one) as b:
        addresses = c_void_p(), c_void_p()
        library.call(
            "cudnnGetRNNWeightParams",
            *(handle, rnn, pseudo_layer, *weights, matrix),
            *(m, ctypes.byref(addresses[0]), b, ctypes.byref(addresses[1])),
        )
        return [at(*of) for of in zip(addresses, (m, b), strict=True)]


def assert_layout(
    library: libcudnn.Library, handle: int, net: int, case: Case, itemsize: int
) -> None:
    """Check that every matrix and bias of cuDNN is where cudnn_rnn_params_layout says."""
    pieces = cupyrnn.cudnn_rnn_params_layout(
        *(case.L, case.H, case.I),
        rnn_mode=case.rnn_mode,  # type: ignore[arg-type]
        input_mode=case.input_mode,  # type: ignore[arg-type]
        direction=case.direction,  # type: ignore[arg-type]
        num_proj=case.num_proj,
    )
    size = library.weight_space_size(handle, net)
    assert size == params_size(case) * itemsize
    gates, base = GATES[case.rnn_mode], 1 << 20
    found: dict[Any, Any] = {}
    for pl in range(case.L * case.D):
        for matrix in range(2 * len(gates) + (case.num_proj > 0)):
            kinds = ("input", "recurrent", "projection")
            kind, gate = kinds[matrix // len(gates)], matrix % len(gates)
            name = "" if kind == "projection" else gates[gate]
            places = weight_params(library, handle, net, pl, (size, base), matrix)
            for what, place in zip((kind, f"{kind}_bias"), places, strict=True):
                if place is not None:
                    address, sizes = place
                    offset, rest = divmod(address - base, itemsize)
                    assert rest == 0
                    found[what, pl, name] = offset, tuple(n for n in sizes if n > 1)
    expected = {
        (p.kind, p.layer * case.D + p.direction, p.gate): (
            p.offset,
            tuple(n for n in p.shape if n > 1),
        )
        for p in pieces
        if p.size
    }
    assert found == expected
