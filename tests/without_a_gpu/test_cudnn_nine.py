"""cuDNN 9, with a library that records its calls: what it supports, and how it is found."""

from __future__ import annotations

import ctypes
import gc
import importlib
import re
import sys
import threading
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checks import Ops, assert_close
from problems import nets

import cupyrnn
from cupyrnn.arithmetic.gates import HardSigmoid
from cupyrnn.cudnn import engine
from cupyrnn.cudnn import library as libcudnn
from cupyrnn.driver import trial
from cupyrnn.driver.reserve import OWNERS
from cupyrnn.kernels import choice, timed
from without_a_gpu.cudnn_stub import SOURCE, Stub, install
from without_a_gpu.cudnn_stub.cases import (
    changed,
    declared,
    given,
    lengths_of,
    net_of,
)
from without_a_gpu.cudnn_stub.fixtures import forget


def to_device(cupy: Any, case: nets.Case, dtype: str = "f8") -> dict[str, Any]:
    """Return the inputs of a net on the device."""
    inputs = nets.problem(np.random.default_rng(0), case, np.dtype(dtype))
    return {n: cupy.asarray(a) for n, a in inputs.items()}


pytestmark = pytest.mark.usefixtures("fresh_search")
SMALL = nets.Case("lstm", 3, 2, 4, 5)
INPUTS = ("input", "input_h", "input_c", "params")


@pytest.mark.parametrize(
    ("seed", "seed2", "expected"),
    [
        (0, 0, 0),
        (3, 5, 3 * 2**32 + 5),
        (-1, 2, 2**64 - 2**32 + 2),
        (2**40, 7, 2**40 * 2**32 % 2**64 + 7),
    ],
)
def test_the_seed_of_the_mask(
    cupy_on_cpu: Any, stub: Stub, seed: int, seed2: int, expected: int
) -> None:
    """The generator is reset in every forward call, and not used in a backward call."""
    case = nets.Case("lstm", 3, 2, 4, 5, 2)
    net = net_of(case, seed=seed, seed2=seed2, dropout=0.25)
    args = given(cupy_on_cpu, case, "float32")
    text = " dropout rate 0.25 restored "
    for _ in range(2):
        output, _, _, reserve = engine.forward(net, args)
        called = stub.last("cudnnSetDropoutDescriptor")
        assert (called["rate"], called["size"], called["seed"]) == (0.25, 64, expected)
        assert called["states"]
        called = stub.last("cudnnRNNForward")
        assert text in called["rnn"]
        assert called["drawn"] == expected % 127
    assert stub.names().count("cudnnSetDropoutDescriptor") == 1
    stub.dll.stub_reset()
    engine.backward(changed(net, seed=77), args, output, (output, None, None), reserve)
    assert "cudnnSetDropoutDescriptor" not in stub.names()
    for name in ("cudnnRNNBackwardData_v8", "cudnnRNNBackwardWeights_v8"):
        assert text in stub.last(name)["rnn"]


def test_what_a_description_depends_on(
    cupy_on_cpu: Any, stub: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A change of any attribute, of lengths, dtype, TF32 or stream needs other descriptors."""
    case = nets.Case("lstm", 3, 2, 4, 4, 2, lengths=(3, 2))
    net = net_of(case, dropout=0.5)
    lengths = lengths_of(case)

    def described(net: Any = net, dtype: str = "float32", lengths: Any = lengths) -> Any:
        return engine._described(net, dtype, lengths)

    first = described()
    assert described(changed(net, seed=1, seed2=2)) is first
    changes = {
        **{"rnn_mode": "gru", "skip": True, "L": 3, "H": 5, "I": 5, "D": 2, "num_proj": 2},
        **{"T": 4, "B": 2, "dropout": 0.25, "is_training": False, "engine": "cudnn_small_h"},
    }
    # cuDNN does not have hard sigmoids.
    assert changes.keys() | {"seed", "seed2", "gate"} == {
        *net.net._fields,
        *net.sizes._fields,
        "engine",
    }
    del changes["B"]  # the lengths' own
    found = [first]
    for name, value in changes.items():
        found.append(described(changed(net, **{name: value})))
        assert described(changed(net, **{name: value})) is found[-1]
    found += [described(dtype="float64"), described(lengths=lengths[::-1].copy())]
    found.append(described(lengths=None))
    monkeypatch.setenv("CUPY_TF32", "1")
    found.append(described())
    monkeypatch.setattr(cupy_on_cpu.cuda.get_current_stream(), "ptr", 3)
    found.append(described())
    assert len({id(a) for a in found}) == len(changes) + 6


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_what_is_not_aligned_is_copied(
    cupy_on_cpu: Any, stub: Stub, monkeypatch: pytest.MonkeyPatch, dtype: str
) -> None:
    """cuDNN may read 16 bytes at once; a view may begin anywhere."""
    cupy, case, kind = cupy_on_cpu, nets.Case("lstm", 3, 2, 3, 5), np.dtype(dtype)

    def shifted(a: Any) -> Any:
        memory = cupy.empty(a.size + 16 // kind.itemsize + 1, kind)
        start = (-memory.data.ptr % 16) // kind.itemsize + 1
        view = memory[start : start + a.size].reshape(a.shape)
        view[...] = a
        assert view.data.ptr % 16 == kind.itemsize
        return view

    rng, call = np.random.default_rng(0), libcudnn.Library.call
    drawn = nets.problem(rng, case, kind) | nets.cotangents_of(rng, case, kind)
    *inputs, dy, dhy, dcy = (shifted(cupy.asarray(drawn[n])) for n in (*INPUTS, *nets.COTANGENTS))
    seen: dict[str, list[bytes]] = {}

    def look(self: Any, name: str, *args: Any) -> None:
        if name.startswith("cudnnRNN"):
            addresses = [a for a in args if isinstance(a, int) and a >> 32]
            assert not any(a % 16 for a in addresses), name
            seen[name] = [ctypes.string_at(a, 20) for a in addresses]
        call(self, name, *args)

    monkeypatch.setattr(libcudnn.Library, "call", look)
    forget()
    out = cupyrnn.cudnn_rnn(*inputs, engine="cudnn")
    results = [shifted(a) for a in out[:4]]
    cupyrnn.cudnn_rnn_backprop(
        *inputs, *results[:3], dy, dhy, dcy, results[3], host_reserved=out.host_reserved
    )
    for name, arrays in {
        "cudnnRNNForward": inputs,
        "cudnnRNNBackwardData_v8": [*inputs[1:], results[0], dy, dhy, dcy],
        "cudnnRNNBackwardWeights_v8": [*inputs[:2], results[0]],
    }.items():
        assert all(a.tobytes()[:20] in seen[name] for a in arrays), name


def test_an_engine_that_fails_is_said_once(
    cupy_on_cpu: Any, stub: Stub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    arguments = to_device(cupy_on_cpu, SMALL)

    def chosen(**more: Any) -> str:
        return cupyrnn.cudnn_rnn_engine(**arguments | more)

    for name, status in (("cudnnSetRNNDescriptor_v8", 4000), ("cudnnSetTensorNdDescriptor", 2000)):
        stub.dll.stub_fail(name.encode(), status)
        message = (
            f"cudnn_rnn_engine: engine 'auto' does not use cuDNN: {name} of cuDNN 9.13.1"
            f" returned CUDNN_STATUS_OF_THE_STUB ({status}): what was wrong"
        )
        with pytest.warns(RuntimeWarning, match=f"^{re.escape(message)}$") as caught:
            assert chosen() == "cupy"
        assert caught[0].filename == __file__
        assert chosen() == "cupy"  # where a warning would be an error
    # No fault: cuDNN does not support a net, or the caller chooses another engine.
    for name, status, lengths in (
        ("cudnnGetRNNWeightSpaceSize", 3000, None),
        ("cudnnSetRNNDataDescriptor", 2000, [0, 3]),
    ):
        stub.dll.stub_fail(name.encode(), status)
        assert chosen(sequence_lengths=lengths) == "cupy"
    stub.dll.stub_fail(b"cudnnCreateRNNDescriptor", 4000)
    assert chosen(engine="cupy") == "cupy"
    with pytest.raises(RuntimeError, match="cudnnCreateRNNDescriptor of cuDNN"):
        chosen(engine="cudnn")
    stub.dll.stub_reset()
    assert chosen() == "cudnn"
    wide = {n: cupy_on_cpu.zeros((1, 2, 4)) for n in ("input_h", "input_c")}
    params = cupy_on_cpu.zeros(cupyrnn.cudnn_rnn_params_size(1, 4, 4, num_proj=4))
    assert chosen(**wide, params=params, num_proj=4) == "cupy"
    # A configured library that does not exist.
    monkeypatch.setenv("CUPYRNN_CUDNN", str(tmp_path / "nowhere.so"))
    with pytest.warns(RuntimeWarning, match="libcudnn.so.9 was not found"):
        assert chosen() == "cupy"
    assert chosen() == "cupy"


def test_tf32_where_the_user_asks_for_it(
    cupy_on_cpu: Any, stub: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    for setting, math in (("0", 3), ("1", 0), ("2", 0), ("-1", 3), ("yes", 3)):
        monkeypatch.setenv("CUPY_TF32", setting)
        engine.forward(net_of(SMALL), given(cupy_on_cpu, SMALL, "float32"))
        assert f" math {math} " in stub.last("cudnnRNNForward")["rnn"]
        engine.forward(net_of(SMALL), given(cupy_on_cpu, SMALL, "float64"))
        assert " math 0 " in stub.last("cudnnRNNForward")["rnn"]


def test_the_public_functions_use_it(
    cupy_on_cpu: Any, stub: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = nets.Case("lstm", 3, 2, 4, 5, lengths=(2, 3))
    inputs, ops = nets.problem(np.random.default_rng(0), case), Ops(cupy_on_cpu)
    arguments = {n: cupy_on_cpu.asarray(a) for n, a in inputs.items()} | case.attributes
    assert cupyrnn.cudnn_rnn_engine(**arguments) == "cudnn"
    out = nets.forward(ops, case, inputs)
    grads = nets.backward(
        ops, case, inputs, out, nets.cotangents_of(np.random.default_rng(0), case)
    )
    np.testing.assert_array_equal(out.output_h, np.full((1, 2, 5), 2.0))
    np.testing.assert_array_equal(grads.params_backprop, np.ones(nets.params_size(case)))
    inference = nets.forward(ops, case, inputs, engine="cudnn", is_training=False)
    assert inference.reserve_space.shape == inference.host_reserved.shape == ()
    own = nets.forward(ops, case, inputs, engine="cupy")
    cotangents = nets.cotangents_of(np.random.default_rng(0), case)
    for given_, engine_, other in ((out, "cupy", "cudnn"), (own, "cudnn", "cupy")):
        message = f"engine is '{engine_}', but reserve_space is of '{other}'"
        with pytest.raises(ValueError, match=f"^cudnn_rnn_backprop: {message}$"):
            nets.backward(ops, case, inputs, given_, cotangents, engine=engine_)
    for by in ("examples", "norms", "none"):
        message = f"weight_gradients is '{by}', expected 'sum' with a reserve_space of cuDNN"
        with pytest.raises(ValueError, match=f"^cudnn_rnn_backprop: {message}"):
            nets.backward(ops, case, inputs, out, cotangents, weight_gradients=by)
    monkeypatch.setenv("CUPYRNN_ENGINE", "cupy")
    assert cupyrnn.cudnn_rnn_engine(**arguments) == "cupy"
    forget()
    stub.dll.stub_fail(b"cudnnSetRNNDescriptor_v8", 3000)
    monkeypatch.delenv("CUPYRNN_ENGINE")
    assert cupyrnn.cudnn_rnn_engine(**arguments) == "cupy"
    message = "engine is 'cudnn', but cudnnSetRNNDescriptor_v8 of cuDNN 9.13.1 returned "
    with pytest.raises(RuntimeError, match=f"^cudnn_rnn: {re.escape(message)}"):
        nets.forward(ops, case, inputs, engine="cudnn")
    own = nets.forward(ops, case, inputs)
    expected = nets.backward(ops, case, inputs, own, cotangents)
    monkeypatch.setenv("CUPYRNN_ENGINE", "cudnn")
    with pytest.raises(
        RuntimeError, match=r"^cudnn_rnn: the environment variable CUPYRNN_ENGINE is 'cudnn', but "
    ):
        nets.forward(ops, case, inputs)
    # host_reserved takes precedence over the variable.
    again = nets.backward(ops, case, inputs, own, cotangents)
    np.testing.assert_array_equal(again.params_backprop, expected.params_backprop)


def test_every_call_of_a_signature_has_its_own_lengths(
    cupy_on_cpu: Any, stub: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cupy_on_cpu.ndarray, "repeats", True)
    inputs = to_device(cupy_on_cpu, SMALL)
    for lengths in ((2, 3), (3, 1)):
        rows = np.array(lengths, np.int32)
        cupyrnn.cudnn_rnn(**inputs, sequence_lengths=rows, engine="cudnn")
        assert stub.last("cudnnRNNForward")["lengths"] == " ".join(map(str, lengths))


# The engines of cuDNN, the numbers of their algorithms in its manual, and the first byte of
# host_reserved.
ALGORITHMS = {
    "cudnn": (0, 1), "cudnn_small_h": (3, 2), "cudnn_persist_dynamic": (2, 3),
    "cudnn_persist_static": (1, 4),
}  # fmt: skip


MODES = ("lstm", "gru", "rnn_tanh", "rnn_relu")
# cuDNN's PERSIST_STATIC does not support GRUs.
PAIRS = [(m, n) for m in MODES for n in ALGORITHMS if (m, n) != ("gru", "cudnn_persist_static")]


@pytest.mark.parametrize(("mode", "name"), PAIRS)
def test_an_algorithm_by_name(cupy_on_cpu: Any, stub: Stub, mode: str, name: Any) -> None:
    """Both passes use it; the gradient finds it in host_reserved."""
    number, owner = ALGORITHMS[name]
    case, ops, dtype = nets.Case(mode, 3, 1, 4, 5, 2, nets.BI), Ops(cupy_on_cpu), np.dtype("f4")
    if number == 1:
        case, dtype = nets.Case(mode, 3, 8, 128, 128), np.dtype("f2")
    inputs, rng = nets.problem(np.random.default_rng(0), case, dtype), np.random.default_rng(1)
    arguments = {"input_c": None} | {n: cupy_on_cpu.asarray(a) for n, a in inputs.items()}
    assert cupyrnn.cudnn_rnn_engine(**arguments, **case.attributes, engine=name) == name
    out = nets.forward(ops, case, inputs, engine=name)
    assert stub.last("cudnnRNNForward")["rnn"].startswith(f"algo {number} ")
    assert out.host_reserved[0] == owner
    cotangents = nets.cotangents_of(rng, case, dtype)
    for engine_ in ("auto", name):
        nets.backward(ops, case, inputs, out, cotangents, engine=engine_)
        assert stub.last("cudnnRNNBackwardData_v8")["rnn"].startswith(f"algo {number} ")
    for other in {*ALGORITHMS, "cupy"} - {name}:
        message = f"engine is '{other}', but reserve_space is of '{name}'"
        with pytest.raises(ValueError, match=f"^cudnn_rnn_backprop: {message}$"):
            nets.backward(ops, case, inputs, out, cotangents, engine=other)
    # Compiled once for a net: forward, backward and the engine query share it.
    built = [c["miniBatch"] for c in stub.calls() if c["call"] == "cudnnBuildRNNDynamic"]
    assert built == ([1] if number == 2 else [])


def test_the_lists_of_engines_are_the_same() -> None:
    assert {*OWNERS} == {*timed.ENGINES} == {"cupy", *ALGORITHMS}


@pytest.mark.usefixtures("new_process")
@pytest.mark.parametrize("is_training", [False, True])
def test_engines_are_compared_and_timed_at_first_use(
    cupy_on_cpu: Any, stub: Stub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, is_training: bool
) -> None:
    """A stub's values are wrong, so that only the kernels are right: one warning."""
    monkeypatch.setenv("CUPYRNN_ENGINE", "auto")
    monkeypatch.setenv("CUPYRNN_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("CUPYRNN_PERSISTENT", "auto")
    monkeypatch.setattr(cupy_on_cpu.cuda.Device, "compute_capability", "75")
    seen: list[list[str]] = []

    def times_of(calls: Any) -> dict[str, float]:
        seen.append([*calls])
        return dict.fromkeys(calls, 1.0)

    monkeypatch.setattr(trial, "times_of", times_of)
    monkeypatch.setattr(trial, "time_kernels", lambda of: keep_loop(of))
    with pytest.warns(RuntimeWarning, match="cudnn lstm_.* float32: a result is off by") as found:
        assert auto(cupy_on_cpu, "float32", 3, 8, is_training=is_training) == "cupy"
    assert len(found) == 1
    assert seen == [["cupy"]]
    assert auto(cupy_on_cpu, "float32", 4, 8, is_training=is_training) == "cupy"
    assert len(seen) == 1
    own = choice.current_device().own
    assert own is not None
    name = f"lstm_{'training' if is_training else 'inference'} float32"
    assert own.fastest[f"{name} few"] == [timed.Timed(8, 4, "cupy")]
    # An engine that is right takes part.
    monkeypatch.setattr(trial, "difference", lambda *_: "")
    assert auto(cupy_on_cpu, "float32", 3, 9, is_training=is_training) == "cupy"
    assert seen[1:] == [["cupy", "cudnn"]]


def keep_loop(of: Any) -> dict[str, float]:
    """Keep that the loop is the fastest, without a look."""
    trial.keep_fastest(of, choice.size_of(of, choice.name_of(of)), {"loop": 1.0}, "loop")
    return {"loop": 1.0}


@pytest.fixture
def like_an_h100(
    cupy_on_cpu: Any, stub: Stub, new_process: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A card of an architecture with times in the package, and without its own times."""
    monkeypatch.setenv("CUPYRNN_CACHE_DIR", "")
    monkeypatch.delenv("CUPYRNN_PERSISTENT", raising=False)
    monkeypatch.setattr(cupy_on_cpu.cuda.Device, "compute_capability", "90")
    monkeypatch.setattr(cupy_on_cpu.cuda.Device, "attributes", {"MultiProcessorCount": 132})


def auto(cupy: Any, dtype: str, B: int, H: int, **more: Any) -> str:
    """Return the engine of an LSTM's call."""
    mode, training = more.pop("mode", "lstm"), more.pop("is_training", True)
    case = nets.Case(mode, more.pop("T", 3), B, 4, H, **more)
    kind = {"float16": "f2", "float32": "f4"}[dtype]
    arrays = {"input_c": None} | to_device(cupy, case, kind)
    given_ = {**arrays, **case.attributes, "is_training": training}
    return cupyrnn.cudnn_rnn_engine(**given_)


@pytest.mark.usefixtures("like_an_h100")
@pytest.mark.parametrize(
    ("expected", "dtype", "B", "H", "more"),
    [
        ("cudnn_small_h", "float16", 16, 128, {}),
        ("cudnn_small_h", "float16", 128, 128, {"is_training": False}),
        ("cupy", "float16", 128, 128, {}),
        ("cudnn_persist_dynamic", "float16", 1, 128, {}),
        ("cudnn_persist_dynamic", "float16", 1, 250, {"is_training": False}),
        # The fastest engine nearby does not support the call: as if nothing was timed.
        ("cupy", "float16", 2, 128, {}),
        ("cupy", "float16", 16, 120, {}),
        ("cupy", "float16", 16, 128, {"lengths": (1, 2, 3, 3) * 4}),
        # Less exact than float32.
        ("cupy", "float32", 1, 128, {}),
        ("cupy", "float32", 16, 128, {"mode": "gru"}),
        # Blocks share the matrix; for a large batch cuDNN's standard algorithm is faster.
        ("cupy", "float32", 64, 512, {}),
        ("cupy", "float32", 256, 512, {"is_training": False}),
        ("cupy", "float16", 64, 512, {}),
        ("cupy", "float16", 16, 1024, {"is_training": False}),
        ("cudnn", "float16", 256, 512, {}),
        # Not timed.
        ("cudnn", "float16", 128, 1024, {}),
        ("cudnn", "float32", 600, 512, {}),
        ("cudnn", "float32", 64, 512, {"T": 1}),
        ("cudnn", "float32", 64, 512, {"num_proj": 3}),
    ],
)  # fmt: skip
def test_auto_takes_the_fastest_engine(
    cupy_on_cpu: Any, expected: str, dtype: str, B: int, H: int, more: Any
) -> None:
    assert auto(cupy_on_cpu, dtype, B, H, **more) == expected


@pytest.mark.usefixtures("like_an_h100")
def test_the_gradient_takes_the_kernels_too(
    cupy_on_cpu: Any, stub: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if only reserve_space is passed."""
    case, ops, kind = nets.Case("lstm", 3, 1, 4, 9), Ops(cupy_on_cpu), np.dtype("f4")
    inputs = nets.problem(np.random.default_rng(0), case, kind)
    cotangents = nets.cotangents_of(np.random.default_rng(0), case, kind)
    out = nets.forward(ops, case, inputs)
    assert out.host_reserved[0] == OWNERS.index("cupy")
    expected = nets.backward(cupyrnn, case, inputs, nets.forward(cupyrnn, case, inputs), cotangents)
    for host_reserved in (out.host_reserved, None):
        given = out._replace(host_reserved=host_reserved)
        grads = nets.backward(ops, case, inputs, given, cotangents)
        assert_close(grads.params_backprop, expected.params_backprop, "float32", "params")
    assert "cudnnRNNForward" not in stub.names()
    monkeypatch.setenv("CUPYRNN_ENGINE", "cudnn")
    assert auto(cupy_on_cpu, "float32", 16, 64) == "cudnn"


@pytest.mark.usefixtures("like_an_h100")
def test_times_of_ones_own_card_go_before(
    cupy_on_cpu: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Engines with wrong values are not used, and a requested kernel takes precedence."""
    assert auto(cupy_on_cpu, "float16", 128, 128) == "cupy"
    name, way = "lstm_training float16", "cudnn_small_h"
    for refused, expected in (({}, way), ({f"{way} {name}": "output is off by 3"}, "cupy")):
        own = timed.Measurements(tmp_path, "A card", {name: [timed.Timed(128, 128, way)]}, refused)
        monkeypatch.setattr(timed, "own", lambda *_, own=own: own)
        assert auto(cupy_on_cpu, "float16", 128, 128, T=len(refused) + 4) == expected
    # Less exact than float32, on any card.
    own = timed.Measurements(
        tmp_path, "A card", {"lstm_training float32": [timed.Timed(128, 16, way)]}, {}
    )
    monkeypatch.setattr(timed, "own", lambda *_: own)
    monkeypatch.setattr(timed, "of_architecture", lambda _: ())
    assert auto(cupy_on_cpu, "float32", 16, 128) == "cudnn"
    monkeypatch.setenv("CUPYRNN_PERSISTENT", "loop")
    assert auto(cupy_on_cpu, "float16", 16, 128, T=7) == "cudnn"


DYNAMIC, STATIC, SMALL_H = "cudnn_persist_dynamic", "cudnn_persist_static", "cudnn_small_h"
OF_STATIC = {"engine": STATIC, "dtype": "float16", "H": 256, "I": 128, "B": 16}
# What a call of one sequence changes, and what cuDNN, or its algorithm, does not support then.
LIMITS: list[tuple[dict[str, Any], str | None]] = [
    *(({symbol: 0}, f"{symbol} = 0") for symbol in ("T", "B", "I", "H", "L")),
    ({"num_proj": 6}, "num_proj = H = 6"), ({"num_proj": 5}, None), ({"T": 65535}, None),
    ({"T": 65536}, "T = 65536, the most is 65535"),
    *(({n: size}, "sizes beyond 32 bits")
      for n, size in (("I", 2**31), ("L", 2**31 // 6 + 1), ("B", 2**30), ("H", 2**31))),
    *(({"engine": name, **changed}, lack) for name in (DYNAMIC, SMALL_H)
      for changed, lack in (({}, None), ({"lengths": [5]}, None), ({"num_proj": 3}, "num_proj = 3"),
                            ({"lengths": [4]}, "sequences of different lengths"))),
    ({"engine": DYNAMIC, "B": 2}, "B = 2, only 1"), ({"engine": DYNAMIC, "H": 2048}, None),
    ({"engine": DYNAMIC, "dtype": "bfloat16"}, "bfloat16"),
    ({"engine": DYNAMIC, "dtype": "float64"}, None), (OF_STATIC, None),
    *((OF_STATIC | changed, lack) for changed, lack in (
        ({"dtype": "float32"}, "float32"), ({"rnn_mode": "gru"}, "GRUs"),
        ({"L": 2}, "several layers or directions"),
        ({"H": 200}, "H = 200, only multiples of 128 up to 1024"),
        ({"H": 1152}, "H = 1152, only multiples of 128 up to 1024"),
        ({"I": 64}, "I = 64, only multiples of 128"),
        ({"B": 12}, "B = 12, only multiples of 8 up to 128"),
        ({"B": 136}, "B = 136, only multiples of 8 up to 128"))),
    ({"engine": SMALL_H, "dtype": "float64"}, "float64"),
    ({"engine": SMALL_H, "dtype": "bfloat16", "B": 33}, None),
    *(({"engine": SMALL_H, "rnn_mode": mode, "is_training": trains, "H": most + more},
       f"H = {most + 1} for '{mode}' in {what}, at most {most}" if more else None)
      for mode, both in (("gru", (192, 128)), ("lstm", (192, 128)), ("rnn_relu", (384, 256)))
      for trains, (what, most) in enumerate(zip(("inference", "training"), both, strict=True))
      for more in (0, 1)),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "lack"), LIMITS, ids=str)
def test_a_limit(stub: Stub, fields: dict[str, Any], lack: str | None) -> None:
    fields = dict(fields)
    dtype, lengths = fields.pop("dtype", "float32"), fields.pop("lengths", None)
    reason = engine.why_not(
        net_of(nets.Case("lstm", 5, 1, 4, 6), **fields),
        dtype,
        None if lengths is None else np.array(lengths, np.int32),
    )
    algorithm = fields.get("engine", "cudnn").removeprefix("cudnn_")
    who = "cuDNN" if algorithm == "cudnn" else f"cuDNN's {algorithm.upper()}"
    assert reason == (None if lack is None else f"{who} does not support {lack}")


def test_what_is_refused_and_why(cupy_on_cpu: Any, stub: Stub) -> None:
    net, arguments = net_of(SMALL), to_device(cupy_on_cpu, SMALL)
    why = f"engine is '{DYNAMIC}', but cuDNN's PERSIST_DYNAMIC does not support B = 2"
    for op in (cupyrnn.cudnn_rnn, cupyrnn.cudnn_rnn_engine):
        with pytest.raises(RuntimeError, match=f"^{op.__name__}: {why}, only 1$"):
            op(**arguments, engine=DYNAMIC)

    def reason(**fields: Any) -> str | None:
        return engine.why_not(changed(net, **fields), "float32", None)

    assert reason() is None
    assert reason(gate=HardSigmoid(0.2, 0.5)) == "cuDNN has no gates but sigmoids"
    # Its compiler may be missing.
    stub.dll.stub_fail(b"cudnnBuildRNNDynamic", 3008)
    assert str(reason(engine=DYNAMIC, B=1)).startswith("cudnnBuildRNNDynamic of ")
    for name in (
        "cudnnCreateRNNDescriptor",
        "cudnnSetDropoutDescriptor",
        "cudnnSetRNNDescriptor_v8",
        "cudnnSetRNNDataDescriptor",
        "cudnnSetTensorNdDescriptor",
        "cudnnGetRNNTempSpaceSizes",
    ):
        before = stub.dll.stub_alive()
        stub.dll.stub_fail(name.encode(), 3000)
        expected = (
            f"{name} of cuDNN 9.13.1 returned CUDNN_STATUS_OF_THE_STUB (3000): what was wrong"
        )
        assert reason(T=5) == expected
        assert stub.dll.stub_alive() == before
        # Existing descriptors are reused.
        assert reason() is None
    stub.dll.stub_reset()
    assert reason(T=5) is None
    assert reason(rnn_mode="elman") == "KeyError: 'elman'"


def test_a_handle_for_each_thread_and_device(cupy_on_cpu: Any, stub: Stub) -> None:

    def run(device: int) -> None:
        with cupy_on_cpu.cuda.Device(device):
            engine.forward(net_of(SMALL), given(cupy_on_cpu, SMALL, "float32"))

    for device in (0, 1, 0, 1):
        run(device)
    used = [c["handle"] for c in stub.calls() if c["call"] == "cudnnRNNForward"]
    assert len(set(used)) == 2
    assert used[:2] == used[2:]
    thread = threading.Thread(target=run, args=(1,))
    thread.start()
    thread.join()
    del thread
    gc.collect()
    other = stub.last("cudnnRNNForward")["handle"]
    assert other not in used
    destroyed = [c["handle"] for c in stub.calls() if c["call"] == "cudnnDestroy"]
    assert destroyed == [other]


def test_the_stub_declares_what_the_package_calls() -> None:
    expanded = SOURCE + "".join(
        f"cudnnStatus_t cudnnCreate{kind}Descriptor(cudnn{kind}Descriptor_t* d);"
        f"cudnnStatus_t cudnnDestroy{kind}Descriptor(cudnn{kind}Descriptor_t d);"
        for kind in ("Dropout", "RNN", "RNNData", "Tensor")
    )
    assert declared(expanded) == libcudnn.PROTOTYPES


def test_a_wrong_path_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file, elsewhere = tmp_path / "libcudnn.so.9", tmp_path / "x" / "y"
    install = (
        r'.*\); install it in a clone with pip install "\.\[cudnn13\]" for CUDA 13,'
        r' pip install "\.\[cudnn12\]" for CUDA 12'
    )
    absent = "cannot open shared object file: No such file or directory"
    for setting, path, reason in (
        *((tmp_path, file, absent), (elsewhere, elsewhere, absent)),
        *((file, file, ""), (tmp_path, file, "")),
    ):
        if not reason:
            file.write_text("no library")
        monkeypatch.setenv("CUPYRNN_CUDNN", str(setting))
        libcudnn._attempt.cache_clear()
        message = f"libcudnn.so.9 was not found (CUPYRNN_CUDNN={setting}; {path}: {reason}"
        assert re.fullmatch(re.escape(message) + install, str(libcudnn.find()), re.DOTALL)


@pytest.mark.cuda_on_cpu
@pytest.mark.usefixtures("nowhere")
def test_where_it_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def path() -> str:
        libcudnn._attempt.cache_clear()
        found = libcudnn.find()
        assert isinstance(found, libcudnn.Library), found
        return found.path

    wheel = install(tmp_path / "wheel" / "lib")
    wheel = wheel.rename(wheel.with_name("libcudnn-of-the-test.so.9"))
    spec = types.SimpleNamespace(submodule_search_locations=[str(tmp_path / "wheel")])
    names = []
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: names.append(name) or spec)
    assert path() == str(wheel)
    assert names == ["nvidia.cudnn"]

    other = install(tmp_path / "pathfinder")

    def load(name: str) -> Any:
        assert name == "cudnn"
        return types.SimpleNamespace(abs_path=str(other))

    finder = types.SimpleNamespace(load_nvidia_dynamic_lib=load)
    monkeypatch.setitem(sys.modules, "cuda.pathfinder", finder)
    assert path() == str(other)

    def fail(name: str) -> Any:
        raise RuntimeError(f"no {name}\nhere")

    finder.load_nvidia_dynamic_lib = fail
    assert path() == str(wheel)

    set_path = install(tmp_path / "set")
    monkeypatch.setenv("CUPYRNN_CUDNN", str(set_path))
    assert path() == str(set_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUPYRNN_CUDNN", "set/libcudnn.so.9")
    assert path() == str(set_path)
