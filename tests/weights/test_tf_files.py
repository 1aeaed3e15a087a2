"""Files of TensorFlow, read and written without it. TensorFlow wrote those in data/tf_files."""

from __future__ import annotations

import os
import pickle
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import needs
import numpy as np
import pytest

from cupyrnn.weights import (
    params_from_tf1,
    params_to_tf1,
    read_tf_checkpoint,
    read_tf_frozen_graph,
    tf_format,
    write_tf_checkpoint,
)

FOLDER = Path(__file__).parents[1] / "data/tf_files"
KINDS = (
    "float32", "float64", "float16", "bfloat16", "int8", "int16", "int32", "int64",
    "uint8", "uint16", "complex64", "complex128", "bool",
)  # fmt: skip


def numbers(shape: tuple[int, ...], dtype: str) -> Any:
    """Return what data/make_tf_files.py wrote."""
    return (np.arange(np.prod(shape)) / 2).reshape(shape).astype(needs.dtype(dtype))


def assert_same(a: Any, b: Any) -> None:
    assert a.dtype == b.dtype
    assert a.shape == b.shape
    assert a.tobytes() == b.tobytes()


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A copy of the files."""
    shutil.copytree(FOLDER, tmp_path, dirs_exist_ok=True)
    return tmp_path


@pytest.mark.parametrize("path", ["model.ckpt", "model.ckpt.index", "."])
def test_a_checkpoint_of_tensorflow(path: str) -> None:
    variables = read_tf_checkpoint(FOLDER / path)
    for kind in KINDS:
        assert_same(variables[f"kinds/{kind}"], numbers((2, 3), kind))
    assert_same(variables["parts0"], numbers((7, 2), "float32"))
    assert_same(variables["parts1"], numbers((2, 200), "float32"))
    assert_same(variables["empty"], np.zeros((0, 4), "f4"))
    assert variables["global_step"] == 700
    assert len(variables) == len(list(variables)) == len(KINDS) + 4
    assert "text" not in variables
    assert "text: string" in repr(variables)
    assert variables["global_step"].flags.writeable


def test_variables_can_be_pickled() -> None:
    variables = pickle.loads(pickle.dumps(read_tf_checkpoint(FOLDER / "model.ckpt")))
    assert_same(variables["parts1"], numbers((2, 200), "float32"))


def test_a_frozen_graph_of_tensorflow() -> None:
    variables = read_tf_frozen_graph(FOLDER / "graph.pb")
    for kind in ("float32", "float64", "float16", "bfloat16", "int32", "int64", "uint8"):
        values = numbers((2, 3), kind)
        assert_same(variables[f"whole/{kind}"], values)
        assert_same(variables[f"filled/{kind}"], np.full((2, 3), values[1, 2]))
        assert_same(variables[f"scalar/{kind}"], values[1, 2])
    assert variables["short"].tolist() == [-1, 5, 5, 5]
    with pytest.raises(ValueError, match=r"^read_tf_frozen_graph: text in .* is a string"):
        variables["text"]


@pytest.mark.parametrize(
    ("read", "path", "error", "message"),
    [
        (read_tf_checkpoint, "version1.ckpt", ValueError, "a checkpoint of version 1. TensorFlow"),
        (read_tf_checkpoint, "graph.pb", ValueError, "expected a checkpoint, which has a file"),
        (read_tf_checkpoint, "none", FileNotFoundError, "there is no file '.*none.index'"),
        (
            read_tf_checkpoint,
            "model.ckpt.data-00000-of-00001",
            ValueError,
            r"expected '.*model\.ckpt', without the ending",
        ),
        (read_tf_frozen_graph, "model.ckpt.index", ValueError, "is damaged or of another kind"),
        (read_tf_frozen_graph, "empty.pb", ValueError, "it is empty"),
        (read_tf_frozen_graph, "saved_model.pb", ValueError, "it is a SavedModel: pass its folder"),
        (read_tf_frozen_graph, "pipe", ValueError, "it is not a regular file"),
    ],
)
def test_other_files_are_refused(
    read: Callable[[Any], Any], path: str, error: type[Exception], message: str, saved: Path
) -> None:
    (saved / "empty.pb").touch()
    (saved / "saved_model.pb").write_bytes(tf_format.message((1, 1), (2, b"")))
    os.mkfifo(saved / "pipe")
    with pytest.raises(error, match=rf"^{read.__name__}: .*{message}"):
        read(saved / path)


def test_a_folder_instead_of_a_frozen_graph(saved: Path) -> None:
    """The error names it, and no descriptor stays open: the next one has the same number."""
    with pytest.raises(IsADirectoryError) as caught:
        read_tf_frozen_graph(saved)
    assert caught.value.filename == str(saved)
    number = os.open(saved, os.O_RDONLY)
    os.close(number)
    with pytest.raises(IsADirectoryError):
        read_tf_frozen_graph(saved)
    again = os.open(saved, os.O_RDONLY)
    os.close(again)
    assert again == number


def test_a_folder_that_has_no_checkpoint_says_what_it_has(saved: Path) -> None:
    (saved / "checkpoint").unlink()
    with pytest.raises(ValueError, match=r"expected the path of a checkpoint; it has model\.ckpt$"):
        read_tf_checkpoint(saved)
    (saved / "variables").mkdir()
    for path in saved.glob("model.ckpt.*"):
        path.rename(saved / "variables" / path.name.replace("model.ckpt", "variables"))
    assert read_tf_checkpoint(saved)["global_step"] == 700


def test_an_unknown_name_is_an_error_that_names_others() -> None:
    with pytest.raises(KeyError, match=r"has no variable 'global', but global_step"):
        read_tf_checkpoint(FOLDER)["global"]


def outcome(read: Callable[[Any], Any], path: Path) -> Any:
    """Return the arrays of a file, or True for a ValueError that names the function."""
    try:
        return {name: a.tobytes() for name, a in read(path).items()}
    except ValueError as error:
        return str(error).startswith(f"{read.__name__}: ") or error


def damaged(path: Path, step: int) -> Iterator[None]:
    """Change a bit of a file, again and again."""
    right = path.read_bytes()
    for at in range(0, len(right), step):
        path.write_bytes(right[:at] + bytes([right[at] ^ 1 << at % 8]) + right[at + 1 :])
        yield
    path.write_bytes(right)


def test_an_unknown_prefix_is_an_error_that_lists_those_that_exist(tmp_path: Path) -> None:
    cells = {
        f"{path}/lstm_cell/{leaf}": np.ones(shape, "f4")
        for path in ("encoder", "decoder")
        for leaf, shape in (("kernel", (5, 8)), ("bias", 8))
    }
    write_tf_checkpoint(tmp_path / "x", cells)
    variables = read_tf_checkpoint(tmp_path / "x")
    with pytest.raises(ValueError, match=r"; it has decoder/lstm_cell, encoder/lstm_cell$"):
        params_from_tf1(variables, prefix="rnn", forget_bias=1)
    assert params_from_tf1(variables, prefix="encoder", forget_bias=1).input_size == 3


def test_every_wrong_bit_of_a_checkpoint_is_noticed(saved: Path) -> None:
    """The blocks of the index and each array have a checksum; a string is not read."""
    expected, outcomes = outcome(read_tf_checkpoint, saved), []
    for suffix, step in (("index", 3), ("data-00000-of-00001", 29)):
        for _ in damaged(saved / f"model.ckpt.{suffix}", step):
            outcomes.append(outcome(read_tf_checkpoint, saved))
    assert [o for o in outcomes if o not in (True, expected)] == []
    assert outcomes.count(expected) < 30  # zeros in the index before its end, and the string


def test_a_damaged_graph_is_a_value_error_or_another_graph(saved: Path) -> None:
    path = saved / "graph.pb"
    right = path.read_bytes()
    outcomes = [outcome(read_tf_frozen_graph, path) for _ in damaged(path, 3)]
    for n in range(1, len(right), 17):
        path.write_bytes(right[:n])
        outcomes.append(outcome(read_tf_frozen_graph, path))
    assert [o for o in outcomes if o is not True and not isinstance(o, dict)] == []


def entry(shape: tuple[int, ...], size: int, offset: int = 0, *parts: bytes) -> bytes:
    dims = b"".join(tf_format.message((2, tf_format.message((1, n)))) for n in shape)
    fields = ((1, 1), (2, dims), (4, offset), (5, size), *((7, part) for part in parts))
    return tf_format.message(*fields)


HEADER = (b"", tf_format.message((1, 1)))


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ([HEADER, (b"a", entry((2**40,), 2**42))], r"bytes, expected 4,398,046,511,104"),
        ([HEADER, (b"a", entry((2**40,), 8))], "8 bytes are stored"),
        ([HEADER, (b"a", entry((2,), 8, 2**62))], "bytes, expected"),
        ([HEADER, (b"a", entry((2**63,), 8))], "size below 0"),
        ([HEADER, (b"a", entry((2**40,), 8, 0, b""))], "a part of a is missing"),
        ([HEADER, (b"b", entry((1,), 4)), (b"a", entry((1,), 4))], "the keys are not sorted"),
        ([(b"a", entry((1,), 4))], "an array is in file 0 of 0"),
    ],
)
def test_hostile_checkpoints_are_refused(entries: Any, message: str, tmp_path: Path) -> None:
    (tmp_path / "x.index").write_bytes(tf_format.table(entries))
    (tmp_path / "x.data-00000-of-00001").write_bytes(b"12345678")
    with pytest.raises(ValueError, match=rf"^read_tf_checkpoint: .*{message}"):
        dict(read_tf_checkpoint(tmp_path / "x"))


def test_parts_must_fill_a_variable(tmp_path: Path) -> None:
    def parts(*starts: int) -> Any:
        extents = [tf_format.message((1, tf_format.message((1, s), (2, 2)))) for s in starts]
        own = [
            (tf_format.key_of_part("a", [(s, 2)]), entry((2,), 8) + b"\x35" + checksum)
            for s in sorted(set(starts))
        ]
        return [HEADER, *own, (b"a", entry((4,), 0, 0, *extents))]

    checksum = tf_format.masked(tf_format.crc32c(b"12345678")).to_bytes(4, "little")
    (tmp_path / "x.data-00000-of-00001").write_bytes(b"12345678" * 2)
    (tmp_path / "x.index").write_bytes(tf_format.table(parts(0, 2)))
    assert read_tf_checkpoint(tmp_path / "x")["a"].shape == (4,)
    for starts, message in (((0, 1), "a part of a|overlap"), ((0, 0), "overlap"), ((0,), "fill")):
        (tmp_path / "x.index").write_bytes(tf_format.table(parts(*starts)))
        with pytest.raises(ValueError, match=message):
            dict(read_tf_checkpoint(tmp_path / "x"))


def test_written_files_are_read_again(tmp_path: Path) -> None:
    variables = dict(read_tf_checkpoint(FOLDER)) | {"f/transposed": np.arange(6.0).reshape(2, 3).T}
    variables["big-endian"] = np.arange(3, dtype=">f4")
    write_tf_checkpoint(tmp_path / "x", variables)
    again = read_tf_checkpoint(tmp_path / "x")
    assert list(again) == sorted(variables)
    for name, a in variables.items():
        np.testing.assert_array_equal(again[name], a)
    write_tf_checkpoint(tmp_path / "x", {})
    assert dict(read_tf_checkpoint(tmp_path / "x")) == {}
    assert sorted(p.name for p in tmp_path.iterdir()) == ["x.data-00000-of-00001", "x.index"]


@pytest.mark.parametrize(
    ("variables", "error", "message"),
    [
        ([1], TypeError, "variables is a list, expected a mapping"),
        ({"a": "text"}, ValueError, "a has dtype <U4, expected one of TensorFlow's"),
        ({"": np.ones(1)}, ValueError, "a name is empty or contains a zero byte"),
        ({"a\0": np.ones(1)}, ValueError, "a name is empty or contains a zero byte"),
    ],
)
def test_what_cannot_be_written_is_refused(
    variables: Any, error: type[Exception], message: str, tmp_path: Path
) -> None:
    write_tf_checkpoint(tmp_path / "x", {"a": np.ones(2)})
    with pytest.raises(error, match=rf"^write_tf_checkpoint: {message}"):
        write_tf_checkpoint(tmp_path / "x", variables)
    assert read_tf_checkpoint(tmp_path / "x")["a"].shape == (2,)
    assert len(list(tmp_path.iterdir())) == 2


def test_checksums() -> None:
    """The check value of the Castagnoli polynomial, and every way to cut the bytes."""
    assert tf_format.crc32c(b"123456789") == 0xE3069283
    content = np.random.default_rng(0).bytes(2**22 + 2050)
    table = [int(value) for value in tf_format._of_byte()]
    register = 2**32 - 1
    for n, byte in enumerate(content):
        if n in (0, 1, 4, 5, 1023, 1024, 1025, 3000, 2**22, 2**22 + 1, 2**22 + 5, 2**22 + 2049):
            assert tf_format.crc32c(content[:n]) == register ^ (2**32 - 1), n
        register = table[(register ^ byte) & 255] ^ register >> 8


def test_a_net_from_file_to_file(tmp_path: Path) -> None:
    """TensorFlow restores what was written, where it is installed."""
    net = params_to_tf1(params_from_tf1(lstm := {
        "rnn/lstm_cell/kernel": np.ones((5, 8), "f4"), "rnn/lstm_cell/bias": np.ones(8, "f4")
    }, forget_bias=0))  # fmt: skip
    write_tf_checkpoint(tmp_path / "model.ckpt", lstm | net)
    tf = needs.module("tensorflow")
    reader = tf.train.load_checkpoint(str(tmp_path / "model.ckpt"))
    for name, a in (lstm | net).items():
        np.testing.assert_array_equal(reader.get_tensor(name), a)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        kernel = tf.compat.v1.get_variable("rnn/lstm_cell/kernel", (5, 8))
        tf.compat.v1.train.Saver().restore(session, str(tmp_path / "model.ckpt"))
        np.testing.assert_array_equal(session.run(kernel), lstm["rnn/lstm_cell/kernel"])


@pytest.mark.parametrize("parts", [1, 3])
def test_tensorflow_shows_the_same(parts: int, tf: Any, tmp_path: Path) -> None:
    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        for n, shape in enumerate([(300, 3), (5, 700), (70, 2, 3)]):
            for axis in range(len(shape)):
                v1.get_variable(
                    f"v{n}/{axis}", shape, partitioner=v1.fixed_size_partitioner(parts, axis)
                )
        session.run(v1.global_variables_initializer())
        v1.train.Saver(sharded=True).save(session, str(tmp_path / "model.ckpt"))
    reader, variables = tf.train.load_checkpoint(str(tmp_path)), read_tf_checkpoint(tmp_path)
    assert set(reader.get_variable_to_shape_map()) == set(variables)
    for name, a in variables.items():
        np.testing.assert_array_equal(reader.get_tensor(name), a)
