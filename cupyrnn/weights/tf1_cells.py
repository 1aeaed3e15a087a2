"""
The recurrent cells among the variables of a TensorFlow 1 checkpoint, found by their names.

The names of a cell's variables begin with its path: "rnn/basic_lstm_cell/kernel". A checkpoint has
other variables too. A layer must not be skipped silently, so every path is a cell, is known to be
no cell, or is an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from types import ModuleType
from typing import NamedTuple

from .._typing import Array
from ..checks.attributes import shown
from ..checks.calls import expect_rank, expect_shape
from .forms import as_arrays, check_names, nested

PEEPHOLES = {"wci": "w_i_diag", "wcf": "w_f_diag", "wco": "w_o_diag"}
GATES = ("gates/kernel", "gates/bias")
CANDIDATE = ("candidate/kernel", "candidate/bias")
OF_GRU_CELL = ("gates/kernel", "candidate/kernel", "gates/bias", "candidate/bias")
CUDNN_GRU = tuple(
    f"candidate/{part}_projection/{kind}"
    for part in ("input", "hidden")
    for kind in ("kernel", "bias")
)
PROJECTION = "projection/kernel"
# The variables of an LSTM, without its path, by the names of `block_lstm`.
LSTM = {"w": "kernel", "b": "bias", **PEEPHOLES, "w_p": PROJECTION}
# Variables that only cells have, the longest names first.
_OF_CELLS = (*CUDNN_GRU, *GATES, *CANDIDATE, *PEEPHOLES.values())
_LEAVES = (*_OF_CELLS, PROJECTION, "kernel", "bias")
_MATRICES = {"kernel", "gates/kernel"}

# Before TensorFlow 1.2 a kernel was "weights" and a bias "biases".
_OLD = {"weights": "kernel", "biases": "bias"}
# And before TensorFlow 1.0, as in the files of ELMo.
_OLDEST = {"W_0": "kernel", "B": "bias", "W_P_0": PROJECTION}
_OF_GRU_BLOCK_CELL = dict(zip(("w_ru", "w_c", "b_ru", "b_c"), OF_GRU_CELL, strict=True))
_OLDEST |= {f"W_{gate.upper()}_diag": f"w_{gate}_diag" for gate in "ifo"}

_CELL = re.compile(r"(.*_)?(cell|lstm|gru|rnn)(_.*)?|.*cell", re.IGNORECASE)
_PLACE = re.compile(r"cell_[0-9]+|fw|bw")
# Names that another layer may have too, such as "rnn_fc": the shapes decide.
_UNCLEAR = re.compile(r"(?!.*cell)(.*_)?(lstm|gru|rnn)_.*[a-z].*", re.IGNORECASE)
_OTHER_LAYER = re.compile(
    r"(dense|fully_connected|conv[123]d|batch_normalization|layer_?norm|logits|softmax)(_[0-9]+)?",
    re.IGNORECASE,
)
_OPTIMIZER = re.compile(
    r"(adam\w*|nadam|rmsprop|momentum|adagrad\w*|adadelta|ftrl|sgd|lamb|optimi[sz]er\w*"
    r"|exponentialmovingaverage)(_[0-9]+)?",
    re.IGNORECASE,
)


# Cells of tf.contrib whose variables have the names and often shapes of an LSTM's or a GRU's.
_UNKNOWN_CELL = re.compile(
    r"(ugrnn|nas|intersection_rnn|coupled_input_forget_gate_lstm|(bidirectional_)?grid\d?_?lstm"
    r"|(masked_)?layer_norm(_basic)?_lstm|time_freq_lstm|phased_lstm|g_?lstm|conv(_?[123]d)?_lstm"
    r"|ind(y|_?rnn)(_lstm|_gru)?|sru|minimal_rnn|cfn|weight_norm_lstm|attention_cell_wrapper"
    r"|highway_wrapper)(_cell)?(_[0-9]+)?",
    re.IGNORECASE,
)
_AVERAGE = "/ExponentialMovingAverage"


class TF1Cell(NamedTuple):
    """A cell's variables, by their names without its path."""

    path: str
    names: dict[str, str]
    arrays: dict[str, Array]

    @property
    def named_mode(self) -> str:
        """The rnn_mode that the names tell, "rnn" for both plain ones, "" if they do not."""
        if "gates/kernel" in self.names:
            return "gru"
        kinds = ("lstm", "gru", "basic_rnn")
        return next(
            (k[-3:] if k != "lstm" else k for k in kinds if k in own_name(self.path).lower()), ""
        )

    def only(self, op: str, *leaves: str) -> list[Array]:
        """Return all variables of the cell; refuse missing ones and others."""
        for leaf in leaves:
            if leaf not in self.arrays:
                there = ", ".join(sorted(self.names))
                raise ValueError(f"{op}: variables has no {join(self.path, leaf)}, but {there}")
        for leaf, name in self.names.items():
            if leaf not in leaves:
                raise ValueError(
                    f"{op}: variables has {name}, expected only {', '.join(leaves)} of that cell"
                )
        return [self.arrays[leaf] for leaf in leaves]

    def projection_size(self, op: str) -> int:
        """Return P of an LSTM, 0 without a projection."""
        if PROJECTION not in self.names:
            return 0
        return expect_rank(op, self.names[PROJECTION], self.arrays[PROJECTION], "(H, P)")[1]

    def expect(self, op: str, leaf: str, symbols: str, shape: tuple[int, ...]) -> None:
        """Check the shape of a variable."""
        expect_shape(op, self.names[leaf], self.arrays[leaf], symbols, shape)


def join(path: str, leaf: str) -> str:
    """Return the name of a variable."""
    return f"{path}/{leaf}" if path else leaf


def cells_of(
    op: str, variables: Mapping[str, object], prefix: str
) -> tuple[ModuleType, list[TF1Cell]]:
    """Return the cells whose variables begin with `prefix`, by their paths."""
    check_names(op, "variables", variables, prefix)
    by_path = {
        path: leaves
        for path, leaves in _grouped(op, variables, prefix).items()
        if not (_UNCLEAR.fullmatch(own_name(path)) and _is_dense(leaves, variables))
    }
    named = {path for path, leaves in by_path.items() if leaves.keys() & {*_OF_CELLS}}
    for path in by_path:
        if _CELL.fullmatch(own_name(path)) or any(map(_PLACE.fullmatch, _parts(path, prefix))):
            named.add(path)
    for path in sorted(named):
        if not by_path[path].keys() & _MATRICES:
            have = ", ".join(sorted(by_path[path].values()))
            raise ValueError(
                f"{op}: variables has {have}, but no {join(path, 'kernel')}: the cell is incomplete"
            )
    cells = named or {path for path, leaves in by_path.items() if leaves.keys() & _MATRICES}
    for name in variables:
        path, mark, _ = f"/{name}".partition("/recurrent_kernel")
        if mark and name.startswith(prefix) and (not cells or path[1:] in cells):
            raise ValueError(
                f"{op}: variables has {name}, a name of Keras; pass the layer's get_weights() to"
                " params_from_keras"
            )
    if not cells:
        whole = _grouped(op, variables, "") if prefix else {}
        paths = sorted(path for path, leaves in whole.items() if leaves.keys() & _MATRICES)
        there = f"; it has {', '.join(paths[:5])}{', ...' * (len(paths) > 5)}" if paths else ""
        raise ValueError(
            f"{op}: variables has no cell under {shown(prefix)}: no name ends in kernel,"
            f" gates/kernel or w_ru{there}"
            f"{_averages(variables) or nested('variables', variables)}"
        )
    names = {path: by_path[path] for path in sorted(cells)}
    for path in names:
        if _UNKNOWN_CELL.fullmatch(own_name(path)):
            raise ValueError(
                f"{op}: {path} is a cell that this package does not have; write it as a cell of"
                " your own, as docs/guide/own_cell.md shows"
            )
    _check_beside(op, variables, names)
    leaf_names = [name for leaves in names.values() for name in leaves.values()]
    xp, arrays = as_arrays(op, {name: variables[name] for name in leaf_names})
    return xp, [
        TF1Cell(path, leaves, {leaf: arrays[name] for leaf, name in leaves.items()})
        for path, leaves in names.items()
    ]


def _averages(variables: Mapping[str, object]) -> str:
    """Return the end of an error if all that is left of the weights is their moving averages."""
    if not any(name.endswith(_AVERAGE) for name in variables):
        return ""
    return (
        f", only averages: pass {{n.removesuffix('{_AVERAGE}'): a for n, a in variables.items() if"
        f" n.endswith('{_AVERAGE}')}}"
    )


def _check_beside(
    op: str, variables: Mapping[str, object], cells: Mapping[str, Mapping[str, str]]
) -> None:
    """Refuse variables beside a cell's that change what it computes, or that no such cell has."""
    for path, leaves in cells.items():
        start = f"{path}/" if path else ""
        for name in variables:
            leaf = _whole_name(name).removeprefix(start)
            if name in leaves.values() or not _whole_name(name).startswith(start):
                continue
            if leaf.endswith(_AVERAGE) and leaf.removesuffix(_AVERAGE) in leaves:
                raise ValueError(
                    f"{op}: variables has {name} beside the weight itself: pass one of both, {{n: a"
                    f" for n, a in variables.items() if not n.endswith('{_AVERAGE}')}} for the"
                    " weights"
                )
            if leaf == "mask":
                raise ValueError(
                    f"{op}: variables has {name}: multiply {leaves.get('kernel', 'kernel')} by it,"
                    " and leave it out"
                )
            of_norm = leaf.rpartition("/")[2] in ("gamma", "beta")
            if of_norm and ("/" not in leaf or _CELL.fullmatch(own_name(path))):
                raise ValueError(
                    f"{op}: variables has {name}: the cell is layer-normalized, which the cells of"
                    " this package are not: docs/guide/own_cell.md shows how to write one; leave"
                    " the variable out if it is of another layer"
                )


def _is_dense(leaves: Mapping[str, str], variables: Mapping[str, object]) -> bool:
    """Return whether this is a dense layer: only kernel and bias, in a shape no cell has."""
    if not {"kernel"} <= leaves.keys() <= {"kernel", "bias"}:
        return False
    shape = tuple(getattr(variables[leaves["kernel"]], "shape", ()))
    if len(shape) != 2:
        return True
    rows, columns = shape
    return bool(rows <= (columns if columns % 4 else columns // 4))


def _grouped(op: str, names: Iterable[str], prefix: str) -> dict[str, dict[str, str]]:
    """Return the variables that may belong to cells, by path and name without it."""
    start = prefix if prefix.endswith("/") or not prefix else prefix + "/"
    by_path: dict[str, dict[str, str]] = {}
    for name in names:
        # Variables of optimizers have another last part, such as kernel/Adam.
        whole = _whole_name(name)
        leaf = next((leaf for leaf in _LEAVES if f"/{whole}".endswith(f"/{leaf}")), None)
        if leaf is None or not whole.startswith(start):
            continue
        path = whole[: -len(leaf)].removesuffix("/")
        parts = _parts(path, prefix)
        if _OTHER_LAYER.fullmatch(parts[-1]) or any(map(_OPTIMIZER.fullmatch, parts)):
            continue
        leaves = by_path.setdefault(path, {})
        if leaf in leaves:
            raise ValueError(
                f"{op}: variables has {shown(leaves[leaf])} and {shown(name)}, which are the same"
                " variable: expected one of them"
            )
        leaves[leaf] = name
    return by_path


def _whole_name(name: str) -> str:
    """Return the name of a variable as TensorFlow 1.2 and later save it, of GRUs as in GRUCell."""
    whole = name.removesuffix(":0").removesuffix("/read")  # frozen graphs add these
    *above, last = whole.split("/")
    return "/".join([*above, (_OLD | _OLDEST | _OF_GRU_BLOCK_CELL).get(last, last)])


def own_name(path: str) -> str:
    """Return the last part of a path."""
    return path.rpartition("/")[2]


def _parts(path: str, prefix: str) -> list[str]:
    """Return the parts of a path after the prefix."""
    return path[len(prefix) :].strip("/").split("/")


def one_cell(op: str, variables: Mapping[str, object], prefix: str) -> tuple[ModuleType, TF1Cell]:
    """Return the only cell whose variables begin with `prefix`."""
    xp, cells = cells_of(op, variables, prefix)
    if len(cells) > 1:
        paths = shown([cell.path for cell in cells])
        raise ValueError(f"{op}: variables has more than one cell: {paths}; choose with prefix")
    return xp, cells[0]


def kernel_sizes(op: str, cell: TF1Cell, G: int, P: int, *vectors: str) -> tuple[int, int]:
    """
    Check kernel [K+P, G*H], bias [G*H] and, if P is not 0, the projection [H, P]; return K and H.

    If P is 0, there is no projection and the kernel is [K+H, G*H]. The cell also has `vectors`.
    """
    kernel, *_ = cell.only(op, "kernel", "bias", *vectors, *[PROJECTION] * bool(P))
    width = f"{G}*H" if G > 1 else "H"
    symbols = f"(I+{'P' if P else 'H'}, {width})"
    rows, columns = expect_rank(op, cell.names["kernel"], kernel, symbols)
    H = columns // G
    if columns % G or not H or rows <= (P or H):
        raise ValueError(
            f"{op}: {cell.names['kernel']} has shape {kernel.shape}, expected {symbols}"
        )
    cell.expect(op, "bias", f"({width},)", (columns,))
    if P:
        cell.expect(op, PROJECTION, "(H, P)", (H, P))
    return rows - (P or H), H
