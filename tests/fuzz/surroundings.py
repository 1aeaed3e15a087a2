"""
What surrounds the ops, at random: each function here draws one case and checks it.

What is drawn: small programs under `jvp`, steps of `prepare_step`, cells of a user's own, the
functions of `cupyrnn.torch`, arguments of `cupyrnn.parallel`, and damaged checkpoints.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import inspect
import io
import json
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from checks import TOLERANCES

import cupyrnn
from cupyrnn import parallel
from cupyrnn.cells.contract import Gradients
from cupyrnn.demo import checkpoint, files
from cupyrnn.weights.block_forms import LSTM_FORM, LSTMForm

from . import FUNCTIONS, Failure, draw_attribute, draw_call, leaves, malform, promised, wrong

Array = Any


def expect_documented(begins: tuple[str, ...], call: Callable[[], Any], *errors: Any) -> Any:
    """Make a call that may fail; return its result or the error, which is to begin with a name."""
    try:
        return call()
    except (TypeError, ValueError, *errors) as error:
        message = str(error)
        if not message.startswith(begins):
            raise Failure(f"an error of its own: {error!r}") from error
        if len(message) > 2000:
            raise Failure(f"a message of {len(message)} characters") from error
        return error
    except Exception as error:
        raise Failure(f"{type(error).__name__} is not documented") from error


def expect_close(what: str, a: Array, e: Array, dtype: str) -> None:
    """Check values beside others of the same precision or more."""
    a, e = np.asarray(a), np.asarray(e)
    if a.shape != e.shape:
        raise Failure(f"{what} has shape {a.shape}, not {e.shape}")
    if not a.size:
        return
    error, scale = np.abs(a - e).max(), max(1.0, float(np.abs(e).max()))
    if not error <= 10 * TOLERANCES[dtype] * scale:
        raise Failure(f"{what} is off by {error:.3g} of {scale:.3g}")


# One step of a program takes an array [n, n] and returns one; all hold for complex numbers.
STEPS: dict[str, Callable[[Array, Array], Array]] = {
    "sum": lambda a, b: a + b,
    "difference": lambda a, b: a - 2 * b,
    "product": lambda a, b: a * b,
    "quotient": lambda a, b: a / (3 + b * b),
    "matmul": lambda a, b: a @ b / 4,
    "tanh": lambda a, _: np.tanh(a),
    "exp": lambda a, _: np.exp(-a * a),
    "sin": lambda a, _: np.sin(a),
    "sqrt": lambda a, _: np.sqrt(4 + a * a),
    "log": lambda a, _: np.log(2 + a * a),
    "power": lambda a, _: a**3,
    "transposed": lambda a, b: a.T + b,
    "rows": lambda a, _: a[::-1, :],
    "summed": lambda a, b: a.sum(axis=0) + b,
    "mean": lambda a, b: a - b.mean(),
    "joined": lambda a, b: np.concatenate([a[:1], b[1:]]),
    "stacked": lambda a, b: np.stack([a, b]).sum(axis=0),
    "chosen": lambda a, b: np.where(a > b, a, b),
    "written": lambda a, b: _written(a, b),
    "einsum": lambda a, b: np.einsum("ij,kj->ik", a, b) / 4,
    "gru": lambda a, b: _cell(a, b),
    "lstm": lambda a, b: cupyrnn.block_lstm(
        a[None], b, np.tanh(b), *_weights(len(a), 4), forget_bias=0, cell_clip=0
    ).h[0],
}


def _written(a: Array, b: Array) -> Array:
    result = a.copy()
    result[0] = b[-1]
    return result


def _weights(n: int, gates: int) -> tuple[Array, Array]:
    w = np.linspace(-0.5, 0.5, 2 * n * gates * n).reshape(2 * n, gates * n)
    return w, np.linspace(-0.1, 0.1, gates * n)


def _cell(a: Array, b: Array) -> Array:
    n = len(a)
    w, biases = _weights(n, 3)
    split = 2 * n
    return cupyrnn.gru_block_cell(
        a, b, w[:, :split].copy(), w[:, split:].copy(), biases[:split], biases[split:]
    ).h


def jvp_of_a_program(rng: np.random.Generator) -> None:
    """The value is the program's own and the tangent that of a step of 1e-30 i."""
    n = int(rng.integers(1, 5))
    names = [list(STEPS)[k] for k in rng.integers(len(STEPS), size=rng.integers(1, 6))]
    a, b, ta, tb = rng.standard_normal((4, n, n))

    def program(a: Array, b: Array) -> Array:
        for name in names:
            a, b = STEPS[name](a, b), a
        return a, b.sum()

    h = 1e-30
    with np.errstate(all="ignore"):  # NumPy warns of exp(-1000) in any program
        values, tangents = cupyrnn.jvp(program, (a, b), (ta, tb))
        plain, stepped = program(a, b), program(a + 1j * h * ta, b + 1j * h * tb)
    for k in range(2):
        what = f"of {names} at {n}: output {k}"
        expect_close(f"the value {what}", values[k], plain[k], "float64")
        expect_close(f"the tangent {what}", tangents[k], np.imag(stepped[k]) / h, "float64")


def vjp_of_an_op(rng: np.random.Generator) -> None:
    """The pullback is the gradient op, told what the forward call was given, whatever it keeps."""
    name = ("block_lstm", "block_gru")[rng.integers(2)]
    op, call = getattr(cupyrnn, name), draw_call(rng, name)
    save = draw_attribute(rng, "save", name, call.symbols)
    by = draw_attribute(rng, "weight_gradients", name, call.symbols)
    out, pullback = cupyrnn.vjp(op, **call.arguments, save=save)
    gradient = getattr(cupyrnn, f"{name}_grad")
    takes = inspect.signature(gradient).parameters
    given = {n: a for n, a in {**call.arguments, **out._asdict()}.items() if n in takes}
    given.pop("cell_clip", None)
    more: dict[str, Any] = {"through_clip": True} if pullback._clip is not None else {}
    with np.errstate(all="ignore"):
        gradients = {
            n: (rng.standard_normal(out.h.shape) / 4).astype(out.h.dtype) for n in pullback.names
        }
    expected = gradient(**given, **gradients, weight_gradients=by)
    found = pullback(**gradients, weight_gradients=by, **more)
    for (n, a), (_, e) in zip(leaves(found), leaves(expected), strict=True):
        if e is None or a is None:
            if a is not e:
                raise Failure(f"{n} is another by the pullback: one is None")
        elif a.dtype != e.dtype or a.shape != e.shape:
            raise Failure(f"{n} is {a.shape} {a.dtype} by the pullback, not {e.shape} {e.dtype}")
        elif save == "all":
            if a.tobytes() != e.tobytes():
                raise Failure(f"{n} is another by the pullback")
        elif call.tame:
            expect_close(f"{n} by the pullback with save={save}", a, e, call.dtype)
    bad = malform(rng, call).arguments
    wrong_save = wrong(rng, save) if rng.random() < 0.3 else save
    expect_documented((f"{name}: ", "vjp: "), lambda: cupyrnn.vjp(op, **bad, save=wrong_save))


def a_prepared_step(rng: np.random.Generator) -> None:
    """A step is the net over one step; malformed calls are refused by name."""
    mode = ("lstm", "gru", "rnn_tanh", "rnn_relu")[rng.integers(4)]
    dtype = ("float16", "float32", "float64")[rng.integers(3)]
    L, H, I, B = (int(n) for n in rng.integers(1, 5, 4))
    more: dict[str, Any] = {"num_proj": int(rng.integers(H + 1))} if mode == "lstm" else {}
    packed = cupyrnn.init_params(
        num_layers=L, num_units=H, input_size=I, rnn_mode=mode, dtype=dtype, seed=rng, **more
    )
    if mode in ("lstm", "gru") and rng.random() < 0.3:
        packed = packed._replace(recurrent_activation="hard_sigmoid_0.2")
    with np.errstate(under="ignore"):
        x = rng.standard_normal((B, I)).astype(dtype)
    h, c = packed.zero_state(B)
    step = cupyrnn.prepare_step(packed)
    out = step(x, h, c)
    net = cupyrnn.cudnn_rnn(x[None], h, c, packed, is_training=False)
    expect_close("output", out.output, net.output[0], dtype)
    expect_close("output_h", out.output_h, net.output_h, dtype)
    given = [x, h, c]
    given[rng.integers(3)] = wrong(rng, given[rng.integers(3)])
    expect_documented(("prepare_step: ",), lambda: step(*given))


class _TwoArraysForm(LSTMForm):
    """A user's form of an LSTM with peepholes: all its gradients are views, of any strides."""

    name = "an LSTM of two arrays"
    shapes: ClassVar = {"w_t": "4*H, K+H", "v": "21*H"}
    together, apart, projection = (), (), ""

    def __init__(self, places: Callable[[Array], Array]) -> None:
        self._places = places

    def vectors(self, v: Array) -> tuple[Array, Array]:
        """Return b [4*H] and the peepholes [3, H], the third of v that is used."""
        *axes, size = v.shape
        b, peepholes = np.split(self._places(v), [size // 21 * 4], axis=-1)
        return b, peepholes.reshape(*axes, 3, size // 21)

    def cell(self, xp: Any, weights: Any, attributes: Any) -> Any:
        """Return the package's own."""
        return LSTM_FORM.cell(xp, self.own(weights), attributes)

    def own(self, weights: Any) -> cupyrnn.PeepholeLSTMParams:
        """Return the package's weights of the same numbers."""
        b, peepholes = self.vectors(weights.v)
        return cupyrnn.PeepholeLSTMParams(weights.w_t.T, b.copy(), *peepholes.copy())

    def gradients(self, xp: Any, grads: Any) -> Gradients:
        """Return views of both."""
        w, (b, peepholes) = grads.w_t.swapaxes(-1, -2), self.vectors(grads.v)
        K = grads.w_t.shape[-1] - b.shape[-1] // 4
        return Gradients(None, (w[..., :K, :], w[..., K:, :]), (b,), peepholes)

    def finished(self, grads: Any, written: Gradients) -> Any:
        """Return them as they are."""
        return grads


def _two_arrays(places: Callable[[Array], Array]) -> Any:
    """Return the class of such weights, whose form is one object."""
    the_form = _TwoArraysForm(places)

    class TwoArrays(NamedTuple):
        w_t: Array  # [4*H, K+H]
        v: Array  # [21*H]
        form = property(lambda _: the_form)

    return TwoArrays


OF_USERS = [
    _two_arrays(lambda v: v[..., : v.shape[-1] // 3]),
    _two_arrays(lambda v: v[..., v.shape[-1] - v.shape[-1] // 3 :]),
    _two_arrays(lambda v: v[..., 1::3]),
    _two_arrays(lambda v: v[..., ::-3]),
]


def _parts(grads: Any, by: str) -> list[Any]:
    """Return the gradients of a layer's weights, alike for both kinds of them."""
    if by == "none":
        return list(grads[:2])
    if by == "norms" and hasattr(grads, "v"):
        return list(grads)
    if by == "norms":
        w, *vectors = grads[:5]
        return [w, np.sqrt(sum(n.astype(np.float64) ** 2 for n in vectors))]
    if hasattr(grads, "v"):
        return [grads.w_t.swapaxes(-1, -2), *grads.form.vectors(grads.v)]
    return [grads.w, grads.b, np.stack(grads[2:5], axis=-2)]


def a_cell_of_a_user(rng: np.random.Generator) -> None:
    """One whose gradients are views of its arrays gives what the package's own cell gives."""
    call = draw_call(rng, "stacked_rnn")
    while call.symbols["rnn_mode"] != "lstm" or not call.tame:
        call = draw_call(rng, "stacked_rnn")
    kind, dtype, H = OF_USERS[rng.integers(len(OF_USERS))], call.dtype, call.symbols["H"]
    save, by = (draw_attribute(rng, n, "", call.symbols) for n in ("save", "weight_gradients"))
    with np.errstate(all="ignore"):
        given = call.arguments["weights"]
        users = [kind(w.w.T, (rng.standard_normal(21 * H) / 4).astype(dtype)) for w in given]
        cotangent = rng.standard_normal((call.symbols["T"], call.symbols["B"]))
    results = []
    for weights in (users, [w.form.own(w) for w in users]):
        given = {**call.arguments, "weights": weights, "is_training": True, "save": save}
        out, pullback = cupyrnn.vjp(cupyrnn.stacked_rnn, **given)
        with np.errstate(all="ignore"):
            by_step = cotangent if given["time_major"] else cotangent.T
            d = np.broadcast_to(by_step[..., None], out.output.shape).astype(dtype)
        grads = pullback(output_backprop=d, weight_gradients=by)
        of_weights = [_parts(w, by) for w in grads.weights_backprop]
        results.append([a for _, a in leaves([list(out[:3]), list(grads[:3]), of_weights])])
    for n, (a, e) in enumerate(zip(*results, strict=True)):
        if a is None or e is None:
            if a is not e:
                raise Failure(f"result {n} of a user's cell is {a!r:.20}, not {e!r:.20}")
        else:
            expect_close(f"result {n} of a user's cell by {by}", a, e, dtype)


TORCH = ("lstm_block_cell", "block_lstm", "gru_block_cell", "block_gru", "cudnn_rnn")


def a_torch_function(rng: np.random.Generator) -> None:
    """What cupyrnn.torch computes is what cupyrnn does; malformed calls are refused by name."""
    torch: Any = importlib.import_module("torch")
    ours = importlib.import_module("cupyrnn.torch")
    name = TORCH[rng.integers(len(TORCH))]
    call = draw_call(rng, name)
    function = getattr(ours, name)
    takes = inspect.signature(function).parameters
    left = {n: v for n, v in call.arguments.items() if n not in takes}
    defaults = inspect.signature(FUNCTIONS[name]).parameters
    if any(v is not defaults[n].default and v != defaults[n].default for n, v in left.items()):
        left_out = {
            n: defaults[n].default for n in left if defaults[n].default is not inspect._empty
        }
        call = call._replace(arguments={**call.arguments, **left_out})
    if call.dtype == "bfloat16" or (call.symbols["rnn_mode"] != "lstm" and name == "cudnn_rnn"):
        return  # NumPy's bfloat16 is no dtype of PyTorch's; states of zero are written otherwise

    def tensor(value: Any) -> Any:
        if type(value) is np.ndarray:
            with contextlib.suppress(
                TypeError, ValueError
            ):  # of a dtype that PyTorch does not have
                return torch.from_numpy(value.copy())
        return value

    def made(arguments: dict[str, Any]) -> dict[str, Any]:
        return {n: tensor(v) for n, v in arguments.items() if n in takes}

    dropping = call.arguments.get("dropout", 0)
    out = function(**made(call.arguments))
    if call.tame and not dropping:
        expected = call.function(**call.arguments)._asdict()
        for n, a in out._asdict().items():
            expect_close(n, a.detach().numpy(), expected[n], call.dtype)
    bad = malform(rng, call).arguments
    expect_documented(
        (f"{name}: ", f"cupyrnn.torch.{name}: "), lambda: function(**made(bad)), NotImplementedError
    )


def arguments_of_parallel(rng: np.random.Generator) -> None:
    """In one process what is given comes back; malformed arguments are refused by name."""
    comm: Any = parallel.communicator()
    arrays: Any = {"w": rng.standard_normal((2, 3)), "b": None, "c": np.ones(2, np.float16)}
    if rng.random() < 0.5:
        arrays = tuple(arrays.values())
    calls: dict[str, dict[str, Any]] = {
        "all_reduce_gradients": {"grads": arrays, "weight": 3, "reduce": "mean"},
        "broadcast_parameters": {"params": arrays, "root": 0},
        "check_parameters": {"params": arrays},
        "barrier": {"timeout": 3},
        "communicator": {"xp": np, "comm": None, "timeout": 3.0},
    }
    name = list(calls)[rng.integers(len(calls))]
    given = calls[name]

    def made(given: dict[str, Any]) -> Any:
        if name == "barrier":
            return comm.barrier(**given)
        if name == "communicator":
            return parallel.communicator(**given)
        return getattr(parallel, name)(given.pop("a_comm", comm), **given)

    result = made(dict(given))
    if name in ("all_reduce_gradients", "broadcast_parameters") and result is not arrays:
        raise Failure(f"{name} returns something else than what it was given")
    key = [*given, "a_comm"][rng.integers(len(given) + (len(given) > 1))]
    if (name, key) in (("barrier", "a_comm"), ("communicator", "a_comm")):
        return
    bad = {**given, key: wrong(rng, given.get(key))}
    expect_documented((f"{name}: ",), lambda: made(bad))


def a_damaged_checkpoint(rng: np.random.Generator) -> None:
    """A file is read as it was written, or refused in one line."""
    arrays = {"a": rng.standard_normal((3, 4)), "b": np.ones(5, np.float32)}
    configuration: Any = {"cell": "lstm", "steps": 3, "seed": int(rng.integers(9))}
    history: dict[str, Any] = {"training": [2.0, 1.5], "held_out": [[1, 1.75]]}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "x.npz")
        checkpoint.save(path, configuration, history, arrays)
        kind = rng.integers(4)
        whole = bytearray(path.read_bytes())
        if kind == 0:
            for _ in range(rng.integers(1, 4)):
                whole[rng.integers(len(whole))] ^= 1 << int(rng.integers(8))
        elif kind == 1:
            del whole[rng.integers(len(whole)) :]
        elif kind == 2:
            whole = bytearray(_edited(rng, configuration, history, arrays))
        files.write(path, bytes(whole))
        try:
            found, read = checkpoint.load(path, configuration, arrays)
        except checkpoint.CheckpointError as error:
            if "\n" in str(error) or not str(error).startswith((repr(str(path)), "cannot read ")):
                raise Failure(f"an error of its own: {error!r}") from error
            if kind == 3:
                raise Failure("a file that is whole is refused") from error
            return
        except Exception as error:
            raise Failure(f"{type(error).__name__} for a damaged file") from error
        if kind != 2 and found != history:
            raise Failure("the history is another")
        for n, a in arrays.items():
            if kind != 2 and a.tobytes() != read[n].tobytes():
                raise Failure(f"{n} is another")


def _edited(rng: np.random.Generator, configuration: Any, history: Any, arrays: Any) -> bytes:
    """Return a whole archive with something else in it."""
    about = {"format": checkpoint.FORMAT, "configuration": configuration, "history": history}
    about = json.loads(json.dumps(about))
    place = about
    for _ in range(rng.integers(3)):
        key = list(place)[rng.integers(len(place))]
        if not isinstance(place[key], dict):
            break
        place = place[key]
    key = list(place)[rng.integers(len(place))]
    choices = [None, [], {}, "x", -1, 3, True, 1e999, [None], [[1, 2]], [["x", 1]], "\n", [2.0]]
    changed = {**place, key: choices[rng.integers(len(choices))]}
    if place is about:
        about = changed
    else:
        place.clear()
        place.update(changed)
    content = io.BytesIO()
    members = {"about": np.array(json.dumps(about)), **arrays}
    if rng.random() < 0.3:
        members[list(members)[rng.integers(len(members))]] = np.zeros(int(rng.integers(3)))
    np.savez(content, **members)
    if rng.random() < 0.2:
        with zipfile.ZipFile(content, "a") as archive:
            archive.writestr("more.npy", b"\0" * 100)
    return content.getvalue()


# What takes arrays and is no gradient of a net, whose reserve_space is of its own engine.
_NO_ARRAYS = ("init_", "jvp", "cudnn_rnn_params_", "vjp", "dequantize", "recurrence")


def device_functions() -> list[str]:
    """Return the functions that are called with CuPy's arrays."""
    names = [n for n in FUNCTIONS if n[0].islower() and not n.startswith(_NO_ARRAYS)]
    names = [n for n in names if "quantized" not in n]
    for name in names:
        SURROUNDINGS[name] = functools.partial(_on_a_device, name=name)
    return names


def _on_a_device(rng: np.random.Generator, name: str) -> None:
    """A right call on CuPy's arrays is close to NumPy's; malformed ones are refused by name."""
    cupy = importlib.import_module("cupy")
    call = draw_call(rng, name)
    while call.dtype == "bfloat16":
        call = draw_call(rng, name)
    on_host = ("sequence_lengths", "resets", "host_reserved", "seq_len_max")

    def moved(value: Any, key: str = "") -> Any:
        if key in on_host:
            return value
        if type(value) is np.ndarray and value.dtype.kind in "fc" and value.dtype.isnative:
            return cupy.asarray(value)
        if isinstance(value, tuple) and hasattr(value, "_make"):
            return value._make(moved(v) for v in value)
        if type(value) in (list, tuple):
            return type(value)([moved(v) for v in value])
        if type(value) is dict:
            return {n: moved(v) for n, v in value.items()}
        return value

    out = call.function(**{n: moved(v, n) for n, v in call.arguments.items()})
    expected = call.function(**call.arguments)
    both = zip(leaves(out), leaves(expected), strict=True)
    for (n, a), (_, e) in both:
        if call.tame and isinstance(e, np.ndarray) and e.dtype.kind == "f" and n != "reserve_space":
            expect_close(n, cupy.asnumpy(a), e, call.dtype)
    malformed = malform(rng, call).arguments
    try:
        bad = {n: moved(v, n) for n, v in malformed.items()}
    except RecursionError:  # of a list that is nested very deep
        bad = malformed
    begins = promised(name)[0]
    expect_documented((f"{begins}: ",), lambda: call.function(**bad), RuntimeError)


SURROUNDINGS: dict[str, Callable[[np.random.Generator], None]] = {
    function.__name__: function
    for function in (
        jvp_of_a_program,
        vjp_of_an_op,
        a_prepared_step,
        a_cell_of_a_user,
        a_torch_function,
        arguments_of_parallel,
        a_damaged_checkpoint,
    )
}
if importlib.util.find_spec("torch") is None:
    del SURROUNDINGS["a_torch_function"]


def check_surroundings(seed: int, case: int, name: str) -> None:
    """Draw a case of one kind and check it."""
    rng = np.random.default_rng([seed, case, 1])
    try:
        with np.errstate(all=("raise", "warn")[rng.integers(2)]):
            SURROUNDINGS[name](rng)
    except Failure as failure:
        raise Failure(f"case {case} of seed {seed}: {name}: {failure}") from failure.__cause__
    except Exception as error:
        raise Failure(f"case {case} of seed {seed}: {name}: {error!r}") from error
