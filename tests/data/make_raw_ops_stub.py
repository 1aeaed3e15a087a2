"""The signatures of raw_ops that editors show: python tests/data/make_raw_ops_stub.py writes them.

The names and the defaults are those of the table in cupyrnn/raw_ops.py. tests/ops/test_raw_ops.py
compares the file with what this script would write.
"""

from __future__ import annotations

import inspect
from pathlib import Path

from cupyrnn import raw_ops

STUB = Path(raw_ops.__file__).with_suffix(".pyi")
HEAD = """# Written by tests/data/make_raw_ops_stub.py.
from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from ._typing import (
    AnyArray,
    ArrayT,
    CudnnRNNGrads,
    CudnnRNNOutputs,
    CudnnRNNV1Outputs,
    GRUCellGrads,
    Lengths,
    LSTMCellGrads,
    LSTMGrads,
)
from .cells.gru import GRUOutputs
from .cells.lstm import LSTMOutputs
from .cells.packed import Direction, InputMode, RNNMode
from .weights.params import CanonicalParams

"""
# The types of arguments that are not arrays.
TYPES = {
    **dict.fromkeys(("seq_len_max", "num_layers", "num_units", "input_size", "num_proj"), "int"),
    **dict.fromkeys(("num_params", "num_params_weights", "num_params_biases"), "int"),
    **dict.fromkeys(("seed", "seed2"), "int"),
    **dict.fromkeys(("forget_bias", "cell_clip", "dropout"), "float"),
    **dict.fromkeys(("is_training", "time_major"), "bool"),
    **dict.fromkeys(("T", "S"), "Any"),
    **{"sequence_lengths": "Lengths", "host_reserved": "NDArray[Any]", "name": "str | None"},
    **{"rnn_mode": "RNNMode", "input_mode": "InputMode", "direction": "Direction"},
    **{"weights": "Sequence[ArrayT]", "biases": "Sequence[AnyArray]"},
}


def stub() -> str:
    """Return the text of the file."""
    lines = [HEAD]
    for op in raw_ops._OPS:
        parts = []
        for name, parameter in inspect.signature(getattr(raw_ops, op)).parameters.items():
            kind = TYPES.get(name, "AnyArray" if parts else "ArrayT")
            if name == "params" and op.startswith("CudnnRNNParams"):
                kind = "ArrayT"
            if name == "use_peephole":
                kind = "bool" if parameter.default is parameter.empty else "bool | None"
            default = parameter.default
            parts.append(f"{name}: {kind}")
            if default is not parameter.empty:
                parts[-1] += " = " + (f'"{default}"' if isinstance(default, str) else repr(default))
        arguments = "".join(f"    {part},\n" for part in ["*", *parts])
        result = getattr(raw_ops, op).__annotations__["return"].replace("[Any]", "[ArrayT]")
        result = result.replace("int", "NDArray[Any]")
        lines.append(f"def {op}(\n{arguments}) -> {result}: ...\n")
    return "".join([*lines, "\n__all__: list[str]\n"])


if __name__ == "__main__":
    STUB.write_text(stub(), encoding="utf-8")
