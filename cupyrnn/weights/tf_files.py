"""Variables in the files of TensorFlow 1 and 2, read and written with NumPy alone."""

from __future__ import annotations

import difflib
import math
import mmap
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..checks.attributes import check_path, named, type_shown
from . import tf_format
from .files import replaced
from .forms import check_names
from .tf_format import Buffer, fields, message, shape_of

NDArray = np.ndarray[Any, np.dtype[Any]]

# The numbers of dtypes in tensorflow/core/framework/types.proto.
_DTYPES = {
    1: "float32", 2: "float64", 3: "int32", 4: "uint8", 5: "int16", 6: "int8", 8: "complex64",
    9: "int64", 10: "bool", 14: "bfloat16", 17: "uint16", 18: "complex128", 19: "float16",
    22: "uint32", 23: "uint64",
}  # fmt: skip
_NUMBERS = {name: number for number, name in _DTYPES.items()}
_OTHER_KINDS = {7: "string", 20: "resource", 21: "variant"}
# The fields of a TensorProto with values that are not raw bytes: how wide they are.
_VALUES = {
    "float32": (5, "<f4"), "float64": (6, "<f8"), "int32": (7, None), "uint8": (7, None),
    "int16": (7, None), "int8": (7, None), "uint16": (7, None), "int64": (10, None),
    "bool": (11, None), "float16": (13, None), "bfloat16": (13, None), "uint32": (16, None),
    "uint64": (17, None),
}  # fmt: skip
_MOST_BYTES = 2**31  # of a constant that is stored as one value; a graph cannot hold more


class _Variable(NamedTuple):
    """What a file says of a variable, and the function that reads it."""

    kind: str  # its dtype, or another kind of variable, which is not read
    shape: tuple[int, ...]
    read: Callable[[], NDArray] | None


class TFVariables(Mapping[str, NDArray]):
    """The variables of a file by name. Each array is read on access."""

    def __init__(self, op: str, path: str, variables: dict[str, _Variable]) -> None:
        self._op, self.path, self._all = op, path, variables

    def __getitem__(self, name: str) -> NDArray:
        variable = self._all.get(name)
        if variable is None:
            near = difflib.get_close_matches(str(name), self, 3, 0.4)
            raise KeyError(
                f"{self._op}: {self.path!r} has no variable {name!r}"
                + (f", but {', '.join(near)}" if near else f"; it has {len(self)}")
            )
        if variable.read is None:
            raise ValueError(
                f"{self._op}: {name} in {self.path!r} is a {variable.kind}, expected numbers"
            )
        with _damaged(self._op, self.path):
            return variable.read()

    def __iter__(self) -> Iterator[str]:
        return (name for name, variable in self._all.items() if variable.read is not None)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, name: object) -> bool:
        return name in self._all and self._all[str(name)].read is not None

    def __repr__(self) -> str:
        lines = [f"{n}: {v.kind} {v.shape if v.read else ''}" for n, v in self._all.items()]
        more = [f"... and {len(lines) - 50} more"] if len(lines) > 50 else []
        return "\n    ".join([f"<{len(self)} variables of {self.path!r}", *lines[:50], *more]) + ">"


@contextmanager
def _damaged(op: str, path: str) -> Iterator[None]:
    """Name the function and the file in an error of what is read."""
    try:
        yield
    except ModuleNotFoundError:
        raise
    except (ValueError, OverflowError) as error:
        raise ValueError(f"{op}: {path!r} is damaged or of another kind: {error}") from None
    except (AttributeError, KeyError, IndexError, TypeError):  # a number, not a message
        raise ValueError(
            f"{op}: {path!r} is damaged: a field is missing or of another kind"
        ) from None


def _mapped(path: str) -> Buffer:
    """Map a file into memory. It must be a regular file: a device or a pipe may never end."""
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    # With an opener an error names the path, not a number, and nothing stays open.
    with open(path, "rb", opener=lambda name, _: os.open(name, flags)) as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise ValueError("it is not a regular file")
        if status.st_size == 0:
            raise ValueError("it is empty")
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def _dtype(kind: str) -> np.dtype[Any]:
    """Return NumPy's dtype."""
    if kind != "bfloat16":
        return np.dtype(kind)
    import ml_dtypes

    bfloat16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
    return bfloat16


def _kind(number: int) -> str:
    """Return the name of a kind of variable."""
    return (
        _DTYPES.get(number) or _OTHER_KINDS.get(number) or f"variable of TensorFlow's type {number}"
    )


# Checkpoints


class _Entry(NamedTuple):
    """The place of an array, as TensorFlow's tensor_bundle.proto describes it."""

    kind: str
    shape: tuple[int, ...]
    path: str
    offset: int
    size: int
    checksum: int
    big_endian: bool
    parts: tuple[tuple[tuple[int, int | None], ...], ...]  # if the variable was saved in parts

    def read(self) -> NDArray:
        """Read the numbers, in the order of bytes of this machine."""
        dtype = _dtype(self.kind)
        if self.size != math.prod(self.shape) * dtype.itemsize:
            raise ValueError(f"{self.size:,} bytes are stored for {self.kind} {self.shape}")
        if self.size == 0:
            return np.zeros(self.shape, dtype)
        data, end = _mapped(self.path), self.offset + self.size
        if end > len(data):
            raise ValueError(f"{self.path!r} has {len(data):,} bytes, expected {end:,}")
        content = bytearray(data[self.offset : end])
        if tf_format.masked(tf_format.crc32c(content)) != self.checksum:
            raise ValueError(f"the checksum of an array in {self.path!r} is wrong")
        array = np.frombuffer(content, dtype).reshape(self.shape)
        return array.byteswap() if self.big_endian == np.little_endian else array


@named
def read_tf_checkpoint(path: str | os.PathLike[str]) -> Mapping[str, NDArray]:
    """
    Read a checkpoint of TensorFlow 1 or 2, or the variables of a SavedModel, without TensorFlow.

    The files are ``PATH.index`` and ``PATH.data-00000-of-00001``, or more of the second kind.
    Only the index is read at once; each array is read on access.

    Parameters
    ----------
    path : str or path-like
        The files' name without ".index", as ``tf.train.Saver`` and ``tf.train.Checkpoint`` return
        it, or with it. A folder stands for its latest checkpoint, or for the variables of the
        SavedModel in it.

    Returns
    -------
    mapping of str to numpy.ndarray
        The variables, by the names that ``tf.train.load_checkpoint`` shows. Variables that were
        saved in parts are whole. The mapping has no strings and other objects; asking for one of
        them is a ValueError, and printing the mapping shows them. bfloat16 needs ml_dtypes.

    Raises
    ------
    OSError
        A file cannot be read.
    ValueError
        A file is damaged, or is not of such a checkpoint. Each array has a checksum, which is
        compared when it is read.

    Notes
    -----
    TensorFlow calls these files version 2 and has written them since 0.12. Version 1 is one file
    without ".index". TensorFlow 2 reads it: ``reader = tf.train.load_checkpoint(path)``.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> import cupyrnn
    >>> saved = {"rnn/lstm_cell/kernel": np.ones((5, 8)), "rnn/lstm_cell/bias": np.ones(8)}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     cupyrnn.weights.write_tf_checkpoint(f"{folder}/model.ckpt", saved)
    ...     variables = cupyrnn.weights.read_tf_checkpoint(f"{folder}/model.ckpt")
    ...     cupyrnn.weights.params_from_tf1(variables, prefix="rnn", forget_bias=1)[1:5]
    (1, 2, 3, 'lstm')
    """
    op = "read_tf_checkpoint"
    prefix = _prefix_of(op, check_path(op, path))
    with _damaged(op, f"{prefix}.index"):
        data = _mapped(f"{prefix}.index")
        if not tf_format.is_table(data):
            raise ValueError("it does not end as the index of a checkpoint")
        entries = _entries(prefix, tf_format.read_table(data))
        variables = {}
        for key, entry in entries.items():
            if not key.startswith(b"\0"):
                name, read = key.decode(), entry.read
                if entry.parts:
                    keys = [tf_format.key_of_part(name, part) for part in entry.parts]
                    if any(part not in entries for part in keys):
                        raise ValueError(f"a part of {name} is missing")
                    read = partial(_joined, name, entry, [entries[part] for part in keys])
                is_read = entry.kind in _NUMBERS
                variables[name] = _Variable(entry.kind, entry.shape, read if is_read else None)
    return TFVariables(op, prefix, variables)


def _prefix_of(op: str, path: str) -> str:
    """Return the name of the files of a checkpoint without their ends."""
    if os.path.isdir(path):
        path = _in_folder(op, path)
    prefix = path.removesuffix(".index")
    if os.path.isfile(f"{prefix}.index"):
        return prefix
    if not os.path.isfile(path):
        raise FileNotFoundError(f"{op}: there is no file {prefix + '.index'!r}")
    whole = re.sub(r"\.(data-\d+-of-\d+|meta)$", "", path)
    if whole != path:
        raise ValueError(f"{op}: path is {path!r}, expected {whole!r}, without the ending")
    with _damaged(op, path):
        if not tf_format.is_table(_mapped(path)):
            raise ValueError(f"expected a checkpoint, which has a file {path + '.index'!r}")
    raise ValueError(
        f"{op}: {path!r} is a checkpoint of version 1. TensorFlow 2 reads it: reader ="
        f" tf.train.load_checkpoint({path!r}); variables = {{n: reader.get_tensor(n) for n in"
        " reader.get_variable_to_shape_map()}"
    )


def _in_folder(op: str, folder: str) -> str:
    """Return the path of the latest checkpoint in a folder, or of a SavedModel's variables."""
    latest = Path(folder, "checkpoint")
    if latest.is_file():
        text = latest.read_bytes()[: 2**16].decode("utf-8", "replace")
        match = re.search(r'^model_checkpoint_path: "((?:[^"\\]|\\.)*)"', text, re.MULTILINE)
        if match is None:
            raise ValueError(f"{op}: {str(latest)!r} names no model_checkpoint_path")
        return os.path.join(folder, re.sub(r"\\(.)", r"\1", match[1]))
    saved = os.path.join(folder, "variables", "variables")
    if os.path.isfile(f"{saved}.index"):
        return saved
    names = sorted(path.name.removesuffix(".index") for path in Path(folder).glob("*.index"))
    raise ValueError(
        f"{op}: {folder!r} is a folder without a file checkpoint, expected the path of a checkpoint"
        + f"; it has {', '.join(names[:5])}" * bool(names)
    )


def _entries(prefix: str, table: dict[bytes, Buffer]) -> dict[bytes, _Entry]:
    """Return what the index says of all arrays."""
    header = dict(fields(table.pop(b"", memoryview(b""))))
    files, big_endian = header.get(1, 0), header.get(2, 0) == 1
    entries = {}
    for key, value in table.items():
        parts = tuple(_extents(part) for number, part in fields(value) if number == 7)
        field = dict(fields(value))
        shard = field.get(3, 0)
        if not 0 <= shard < files:
            raise ValueError(f"an array is in file {shard} of {files}")
        entries[key] = _Entry(
            kind=_kind(field.get(1, 0)),
            shape=shape_of(field.get(2, b"")),
            path=f"{prefix}.data-{shard:05d}-of-{files:05d}",
            offset=field.get(4, 0),
            size=field.get(5, 0),
            checksum=int.from_bytes(field.get(6, b""), "little"),
            big_endian=big_endian,
            parts=parts,
        )
    return entries


def _extents(part: Buffer) -> tuple[tuple[int, int | None], ...]:
    """Return the start and size of a part in each dimension; None is a whole dimension."""
    pairs = (dict(fields(extent)) for number, extent in fields(part) if number == 1)
    return tuple((pair.get(1, 0), pair.get(2)) for pair in pairs)


def _joined(name: str, entry: _Entry, parts: list[_Entry]) -> NDArray:
    """Read a variable that was saved in parts."""
    if sum(math.prod(part.shape) for part in parts) != math.prod(entry.shape):
        raise ValueError(f"the parts of {name} do not fill {entry.shape}")
    dtype, stored = _dtype(entry.kind), sum(map(os.path.getsize, {part.path for part in parts}))
    if math.prod(entry.shape) * dtype.itemsize > stored:
        raise ValueError(f"{stored:,} bytes are stored for {name} {entry.shape}")
    whole = np.empty(entry.shape, dtype)
    missing = np.ones(entry.shape, bool)
    for extents, part in zip(entry.parts, parts, strict=True):
        where = tuple(slice(start, None if n is None else start + n) for start, n in extents)
        if part.kind != entry.kind or whole[where].shape != part.shape:
            raise ValueError(f"a part of {name} is {part.kind} {part.shape}")
        whole[where], missing[where] = part.read(), False
    if missing.any():
        raise ValueError(f"the parts of {name} overlap")
    return whole


@named
def write_tf_checkpoint(path: str | os.PathLike[str], variables: Mapping[str, object]) -> None:
    """
    Write a checkpoint that ``tf.train.Saver`` of TensorFlow 1 and 2 restores, without TensorFlow.

    The files are ``PATH.index`` and ``PATH.data-00000-of-00001``. Existing ones are replaced when
    the new ones are complete. The file "checkpoint", which names the latest one, is not changed.

    Parameters
    ----------
    path : str or path-like
        The files' name without ending.
    variables : mapping of str to array_like
        The variables by name, such as a dict of what `read_tf_checkpoint` returned, with new values
        for some. They are NumPy arrays or scalars, in the dtypes that the model has.

    Raises
    ------
    OSError
        A file cannot be written.
    TypeError
        variables is not a mapping of strings to arrays, or an array is on a device.
    ValueError
        A dtype is none of TensorFlow's, or a name is empty or contains a zero byte.

    Notes
    -----
    ``tf.train.Checkpoint`` of TensorFlow 2 finds variables by a graph of objects, which these files
    do not contain. There, assign the arrays to the variables of the model.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> import cupyrnn
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     cupyrnn.weights.write_tf_checkpoint(f"{folder}/model.ckpt", {"bias": np.ones(8)})
    ...     cupyrnn.weights.read_tf_checkpoint(f"{folder}/model.ckpt")["bias"].shape
    (8,)
    """
    op = "write_tf_checkpoint"
    prefix = check_path(op, path)
    check_names(op, "variables", variables, "")
    keys = sorted((name.encode(), name) for name in variables)
    if keys and (keys[0][0] == b"" or any(b"\0" in key for key, _ in keys)):
        raise ValueError(f"{op}: a name is empty or contains a zero byte")
    header = message((1, 1), (3, message((1, 1))))  # one file of numbers; the version of the format
    entries, offset = [(b"", header)], 0
    data, index = f"{prefix}.data-00000-of-00001", f"{prefix}.index"
    with replaced(data) as numbers, replaced(index) as table:
        for key, name in keys:
            array = _to_save(op, name, variables[name])
            content = array.tobytes()
            dims = b"".join(message((2, message((1, n)) or b"")) for n in array.shape)
            entry = message(
                (1, _NUMBERS[array.dtype.name]), (2, dims), (4, offset), (5, len(content))
            )
            checksum = tf_format.masked(tf_format.crc32c(content))
            entries.append((key, entry + b"\x35" + checksum.to_bytes(4, "little")))
            numbers.write(content)
            offset += len(content)
        table.write(tf_format.table(entries))


def _to_save(op: str, name: str, value: Any) -> NDArray:
    """Return a variable as an array whose bytes are stored."""
    if hasattr(value, "__cuda_array_interface__"):
        raise TypeError(
            f"{op}: {name} is {type_shown(value)}, expected a numpy.ndarray: pass its .get()"
        )
    array = np.asarray(value)
    if array.dtype.name not in _NUMBERS:
        raise ValueError(f"{op}: {name} has dtype {array.dtype}, expected one of TensorFlow's")
    return array.astype(array.dtype.newbyteorder("<"), copy=False)


# Frozen graphs


@named
def read_tf_frozen_graph(path: str | os.PathLike[str]) -> Mapping[str, NDArray]:
    """
    Read the constants of a frozen graph (.pb) of TensorFlow 1 or 2, without TensorFlow.

    Each array is read on access.

    Parameters
    ----------
    path : str or path-like
        The file: a GraphDef, as ``freeze_graph`` and ``tf.io.write_graph(as_text=False)`` write it.

    Returns
    -------
    mapping of str to numpy.ndarray
        The constants, by the names of their nodes. A variable of the model has its own name; a
        frozen graph has other constants, too. Strings are not in it. bfloat16 needs ml_dtypes.

    Raises
    ------
    OSError
        The file cannot be read.
    ValueError
        The file is damaged, or is not a GraphDef.

    Examples
    --------
    >>> import cupyrnn
    >>> variables = cupyrnn.weights.read_tf_frozen_graph("model.pb")  # doctest: +SKIP
    >>> cupyrnn.weights.params_from_tf1(variables, forget_bias=1)  # doctest: +SKIP
    """
    op = "read_tf_frozen_graph"
    name = check_path(op, path)
    variables: dict[str, _Variable] = {}
    with _damaged(op, name):
        data = _mapped(name)
        whole = np.frombuffer(data, np.uint8).ctypes.data
        for number, node in fields(data):
            if number == 1 and isinstance(node, int):
                raise ValueError("it is a SavedModel: pass its folder to read_tf_checkpoint")
            tensor = _constant(node) if number == 1 else None
            if tensor is None:
                continue
            node_name, content = tensor
            field = dict(fields(content))
            kind, shape = _kind(field.get(1, 0)), shape_of(field.get(2, b""))
            begin = np.frombuffer(content, np.uint8).ctypes.data - whole
            read = partial(_read_constant, name, begin, len(content))
            variables[node_name] = _Variable(kind, shape, read if kind in _VALUES else None)
        if not variables:
            raise ValueError("it has no constants")
    return TFVariables(op, name, variables)


def _constant(node: Buffer) -> tuple[str, Buffer] | None:
    """Return the name of a node that is a constant, and its TensorProto."""
    parts = list(fields(node))
    if not any(number == 2 and bytes(value) == b"Const" for number, value in parts):
        return None
    names = [bytes(value).decode() for number, value in parts if number == 1]
    for attribute in (dict(fields(value)) for number, value in parts if number == 5):
        tensor = dict(fields(attribute[2])).get(8) if bytes(attribute[1]) == b"value" else None
        if tensor is not None:
            return names[0], tensor
    return None


def _read_constant(path: str, begin: int, size: int) -> NDArray:
    """Read a TensorProto: raw bytes, or values; the last one fills the rest."""
    parts = list(fields(_mapped(path)[begin : begin + size]))
    field = dict(parts)
    kind, shape = _kind(field[1]), shape_of(field.get(2, b""))
    dtype, count = _dtype(kind), math.prod(shape)
    if count * dtype.itemsize > _MOST_BYTES:
        raise ValueError(f"a constant has the shape {shape}, which no graph can hold")
    if content := bytes(field.get(4, b"")):
        return np.frombuffer(bytearray(content), dtype).reshape(shape)
    number, width = _VALUES[kind]
    chunks = [value for n, value in parts if n == number]
    if width is None:
        values = np.array([v for chunk in chunks for v in _varints(chunk)])
    else:
        values = np.frombuffer(b"".join(chunks), width)
    if len(values) > count or (count and not len(values)):
        raise ValueError(f"{len(values)} values are stored for {kind} {shape}")
    if kind in ("float16", "bfloat16"):
        values = values.astype("u2").view(dtype)
    filled = np.empty(count, dtype)
    filled[: len(values)] = values
    filled[len(values) :] = values[-1:]
    return filled.reshape(shape)


def _varints(chunk: Any) -> Iterator[int]:
    """Return the signed numbers of a field: one, or packed ones."""
    at = 0
    chunk = tf_format.as_varint(chunk) if isinstance(chunk, int) else chunk
    while at < len(chunk):
        value, at = tf_format.varint(chunk, at)
        yield value - (value >> 63 << 64)
