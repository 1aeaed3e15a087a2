"""A net saved to a file and loaded again; files that are not nets."""

from __future__ import annotations

import io
import json
import os
import re
import zipfile
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import cupyrnn
from cupyrnn.weights import load_params

NET = cupyrnn.init_params(
    num_layers=2, num_units=3, input_size=2, rnn_mode="gru", direction="bidirectional"
)._replace(recurrent_activation="hard_sigmoid_0.2")


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
def test_a_net_is_loaded_as_it_was_saved(dtype: Any, tmp_path: Path) -> None:
    packed = NET._replace(params=NET.params.astype(dtype))
    packed.save(tmp_path / "net")
    again = load_params(str(tmp_path / "net"))
    assert again[1:] == packed[1:]
    assert again.params.dtype == dtype
    assert again.params.tobytes() == packed.params.tobytes()


@pytest.mark.parametrize("link", [False, True])
def test_an_unfinished_file_leaves_the_old_one(
    link: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "net"
    if link:
        path.symlink_to("other")
    NET.save(path)
    path.chmod(0o640)
    before = path.read_bytes()

    def no_space(file: Any, **arrays: Any) -> None:
        file.write(b"PK")
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(np, "savez", no_space)
        with pytest.raises(OSError, match="No space left"):
            NET.save(path)
    assert path.read_bytes() == before
    NET._replace(params=2 * NET.params).save(path)
    assert (load_params(path).params == 2 * NET.params).all()
    assert path.stat().st_mode & 0o777 == 0o640
    assert path.is_symlink() == link
    assert len(list(tmp_path.iterdir())) == 1 + link


@pytest.mark.parametrize("write", ["save", "write_tf_checkpoint"])
def test_errors_of_files_name_what_was_passed(write: str, tmp_path: Path) -> None:
    def call(path: Path) -> None:
        if write == "save":
            NET.save(path)
        else:
            cupyrnn.weights.write_tf_checkpoint(path, {"a": np.ones(2)})

    with pytest.raises(FileNotFoundError) as missing:
        call(tmp_path / "missing/net")
    names = {"save": "net", "write_tf_checkpoint": "net.data-00000-of-00001"}
    assert missing.value.filename == str(tmp_path.resolve() / "missing" / names[write])
    (tmp_path / names[write]).mkdir()
    with pytest.raises(IsADirectoryError) as folder:
        call(tmp_path / "net")
    assert folder.value.filename == str(tmp_path.resolve() / names[write])
    assert len(list(tmp_path.iterdir())) == 1


def about(**changed: Any) -> Any:
    net = dict(zip(NET._fields[1:], NET[1:], strict=True))
    own = {"format": "cupyrnn.PackedParams 1", "dtype": "float32"}
    return np.array(json.dumps(own | net | changed))


@pytest.mark.parametrize(
    ("members", "reason"),
    [
        ({}, "about is missing"),
        ({"about": np.array([{}])}, "about is not a text"),
        ({"about": about(format="x"), "params": NET.params}, "another format"),
        ({"about": about(dtype="float64"), "params": NET.params}, "params has dtype float32"),
        ({"about": about(num_units=4), "params": NET.params}, "params has shape"),
        ({"about": about(more=1), "params": NET.params}, "more"),
        ({"about": about(), "params": np.array([{}])}, "params is missing, or of another kind"),
    ],
)
def test_other_files_are_refused(members: dict[str, Any], reason: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", **members)
    message = rf"^load_params: '.*x\.npz' is not a file of packed\.save: .*{reason}"
    with pytest.raises(ValueError, match=message):
        load_params(tmp_path / "x.npz")


def test_compressed_and_damaged_files_are_refused(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "x.npz", about=about(), params=NET.params)
    with pytest.raises(ValueError, match=r"is compressed, expected a file of np\.savez"):
        load_params(tmp_path / "x.npz")
    (tmp_path / "x.npz").write_bytes(b"PK")
    with pytest.raises(ValueError, match=r"not a zip file|is no file"):
        load_params(tmp_path / "x.npz")
    with pytest.raises(FileNotFoundError):
        load_params(tmp_path / "y.npz")


def test_every_damage_is_a_value_error_with_the_path(tmp_path: Path) -> None:
    """One bit is changed, or the end cut off: everywhere in the directory, and here and there."""
    path, messages = tmp_path / "x.npz", []
    cupyrnn.init_params(num_layers=1, num_units=1, input_size=1).save(path)
    whole = path.read_bytes()
    places = [*range(0, len(whole) - 250, 50), *range(len(whole) - 250, len(whole))]
    for n in places:
        for content in whole[:n], whole[:n] + bytes([whole[n] ^ 1]) + whole[n + 1 :]:
            path.write_bytes(content)
            try:
                load_params(path)  # zipfile does not read every field
            except ValueError as error:
                messages.append(str(error))
    assert all(str(path) in message for message in messages)
    assert len(messages) > 1.75 * len(places)


def test_what_is_no_file_is_named(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "missing", tmp_path / "pipe"):
        with pytest.raises(OSError, match=f": {re.escape(repr(str(path)))}$"):
            load_params(path)


@pytest.mark.parametrize(("path", "found"), [(1, "an int"), (None, "None"), (b"x", "a bytes")])
def test_what_is_no_path_is_named(path: Any, found: str) -> None:
    """An integer would be a file that is open already, such as standard output."""
    for call, op in (load_params, "load_params"), (NET.save, "save"):
        with pytest.raises(
            TypeError, match=rf"^{op}: path is {found}, expected a string or a path$"
        ):
            call(path)


def claim(path: Path, name: str, size: int | None = None) -> None:
    """Set the size of a member in the directory of a file; None sets its compressed size."""
    content = bytearray(path.read_bytes())
    at = content.rindex(f"{name}.npy".encode()) - 46  # the directory's entry begins there
    compressed = content[at + 20 : at + 24] if size is None else size.to_bytes(4, "little")
    content[at + 20 : at + 28] = 2 * compressed
    path.write_bytes(content)


def test_sizes_that_a_file_claims_are_not_believed(tmp_path: Path) -> None:
    path, header = tmp_path / "x.npz", io.BytesIO()
    np.savez_compressed(path, about=about(), params=NET.params)
    claim(path, "about")
    claim(path, "params")
    with pytest.raises(ValueError, match="is compressed"):
        load_params(path)
    np.savez(path, about=about(), params=NET.params)
    claim(path, "params", 10**9)
    with pytest.raises(ValueError, match=r"params.npy has 1,000,000,000 bytes, the file \d"):
        load_params(path)
    shape = {"descr": "<f8", "fortran_order": False, "shape": (10**12,)}
    np.lib.format.write_array_header_1_0(header, shape)
    np.savez(path, about=about())
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("params.npy", header.getvalue())
    with pytest.raises(ValueError, match="params is missing, or of another kind"):
        load_params(path)


def test_arrays_as_attributes_say_what_to_use(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", **NET._asdict())
    packed = cupyrnn.PackedParams(**np.load(tmp_path / "x.npz"))
    with pytest.raises(TypeError, match=r"use packed\.save and cupyrnn\.weights\.load_params"):
        packed.zero_state(2)


def test_what_cannot_be_saved(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"^save: the dtype of params is 'complex64', expected one"
    ):
        NET._replace(params=NET.params.astype("F")).save(tmp_path / "x")
    with pytest.raises(ValueError, match=r"^save: params has shape"):
        NET._replace(params=NET.params[1:]).save(tmp_path / "x")
    assert not any(tmp_path.iterdir())


def test_weights_are_no_numbers() -> None:
    block, gru = (
        init(num_units=2, input_size=3)
        for init in (cupyrnn.init_block_lstm, cupyrnn.init_block_gru)
    )
    weights: tuple[Any, ...] = (NET, block, gru, cupyrnn.PeepholeLSTMParams(*block))
    for own in weights:
        for wrong in (lambda a: a * 2, lambda a: 2 * a, lambda a: a + a):
            with pytest.raises(
                TypeError, match=rf"^{type(own).__name__}: \+ and \* are not defined"
            ):
                wrong(own)


def test_arguments_of_block_weights() -> None:
    lstm, gru = (
        init(num_units=2, input_size=3)
        for init in (cupyrnn.init_block_lstm, cupyrnn.init_block_gru)
    )
    x = np.ones((4, 1, 3), np.float32)
    out = cupyrnn.block_lstm(x, *lstm.zero_state(1), **lstm.arguments)
    np.testing.assert_array_equal(out.h, cupyrnn.block_lstm(x, *lstm.zero_state(1), *lstm).h)
    h = cupyrnn.block_gru(x, gru.zero_state(1), **gru.arguments).h
    np.testing.assert_array_equal(h, cupyrnn.block_gru(x, gru.zero_state(1), *gru).h)


BY_NAME = {"rnn.weight_ih_l0": np.ones((8, 3)), "rnn.weight_hh_l0": np.ones((8, 2))}
CELL = {"rnn/lstm_cell/kernel": np.ones((5, 8)), "rnn/lstm_cell/bias": np.ones(8)}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda w: w.params_from_torch({"model": BY_NAME}), r"; state_dict\['model'\] is a map"),
        (lambda w: w.params_from_torch({"a.rnn.x": 1}, prefix="a.rnn"), r"a\.rnn\.weight_ih_l0"),
        (
            lambda w: w.params_from_torch({"rnn._all_weight_values.0.param": 1}),
            "is of quantize_dynamic",
        ),
        (lambda w: w.params_from_torch("model.pt"), "; read the file first"),
        (lambda w: w.params_from_keras("m.keras"), "; read the file first"),
        (lambda w: w.params_from_tf1({"v": CELL}, forget_bias=1), r"; variables\['v'\] is a map"),
        (lambda w: w.block_lstm_from_tf1({"v": CELL}), r"; variables\['v'\] is a mapping"),
        (
            lambda w: w.params_from_keras([np.ones((9, 3)), np.ones((3, 16)), np.ones(16)]),
            r"layer\.get_weights\(\)",
        ),
        (lambda w: w.params_from_keras([], activation="relu"), "run_onnx_node has activations"),
        (lambda w: w.params_from_keras([], go_backwards=True), "reverse=True in the call"),
    ],
)
def test_what_a_file_holds_is_named(call: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        call(cupyrnn.weights)


def test_names_of_a_frozen_graph() -> None:
    frozen = {f"{name}/read:0": a for name, a in CELL.items()}
    np.testing.assert_array_equal(cupyrnn.weights.block_lstm_from_tf1(frozen).w, np.ones((5, 8)))
