"""Where the real library must have each matrix of the packed parameters."""

from __future__ import annotations

import itertools
from typing import Any

from problems.nets import BI, LINEAR, SKIP, UNI, Case, params_size

import cupyrnn
from cupyrnn.cudnn import library as libcudnn
from cupyrnn.weights.params import GATES

LAYOUTS = [
    Case(mode, 1, 1, I, H, L, direction, P, input_mode)
    for mode, (I, H), L, direction, P, input_mode in itertools.product(
        GATES, ((3, 5), (4, 4), (1, 2), (7, 1)), (1, 2, 3), (UNI, BI), (0, 1, 3), (LINEAR, SKIP)
    )
    if (input_mode == LINEAR or I == H) and (not P or (mode == "lstm" and H > P))
]


def assert_layout(
    library: libcudnn.Library, handle: int, net: int, case: Case, itemsize: int
) -> None:
    """cuDNN has every matrix and every bias where cudnn_rnn_params_layout says."""
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
            m, b = library.weight_params(handle, net, pl, (size, base), matrix)
            for what, at in ((kind, m), (f"{kind}_bias", b)):
                if at is not None:
                    offset, rest = divmod(at.address - base, itemsize)
                    assert rest == 0
                    shape = tuple(n for n in at.shape if n > 1)
                    found[what, pl, name] = offset, shape
    expected = {
        (p.kind, p.layer * case.D + p.direction, p.gate): (
            p.offset,
            tuple(n for n in p.shape if n > 1),
        )
        for p in pieces
        if p.size
    }
    assert found == expected
