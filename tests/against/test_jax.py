"""cupyrnn.jax compared with the same nets written in JAX: every transform, every op."""

from __future__ import annotations

import functools
from typing import Any

import needs
import numpy as np
import pytest
from problems.table import STATES, Case, call_of

import cupyrnn

try:
    import jax
    import jax.numpy as jnp

    import cupyrnn.jax as cj

    jax.config.update("jax_num_cpu_devices", 2)
except ModuleNotFoundError:  # another error in cupyrnn.jax is a failure
    jax = jnp = cj = None  # type: ignore[assignment]

pytestmark = pytest.mark.skipif(jax is None, reason=needs.REASONS["jax"])

T, B, I, H = 4, 2, 3, 3
LENGTHS = np.array([4, 2], np.int32)
EVERY = tuple(range(5))


@pytest.fixture(autouse=True)
def wide() -> Any:
    # In all threads, because JAX calls the host from its own threads.
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", before)


def lstm(*args: Any) -> Any:
    return tuple(cj.block_lstm(*args, cell_clip=0))


def in_jax(x: Any, cs: Any, h: Any, w: Any, b: Any) -> Any:
    def step(state: Any, x: Any) -> Any:
        cs, h = state
        i, ci, f, o = jnp.split(jnp.concatenate([x, h], 1) @ w + b, 4, 1)
        cs = jax.nn.sigmoid(f + 1) * cs + jax.nn.sigmoid(i) * jnp.tanh(ci)
        h = jax.nn.sigmoid(o) * jnp.tanh(cs)
        return (cs, h), (cs, h)

    return jax.lax.scan(step, (cs, h), x)[1]


def drawn(*shape: int, seed: int = 0) -> Any:
    return jnp.asarray(0.5 * np.random.default_rng([seed, *shape]).standard_normal(shape))


ARGS = ((T, B, I), (B, H), (B, H), (I + H, 4 * H), (4 * H,))


def args(seed: int = 0) -> tuple[Any, ...]:
    return tuple(drawn(*shape, seed=seed) for shape in ARGS)


def loss(function: Any) -> Any:
    def call(*args: Any) -> Any:
        cs, h = function(*args)
        return jnp.sum(jnp.sin(cs) * drawn(T, B, H, seed=2) + h**2)

    return call


def inner(function: Any) -> Any:
    """The gradient along a direction, a function that has a gradient itself."""
    slopes = jax.grad(loss(function), EVERY)
    return lambda *p: sum(jnp.sum(g * d) for g, d in zip(slopes(*p), args(1), strict=True))


def several(x: Any) -> Any:
    return jnp.stack([x, 2 * x, -x])


OF_X = (0, None, None, None, None)
TRANSFORMS: dict[str, Any] = {
    "call": lambda f: f(*args()),
    "jit": lambda f: jax.jit(f)(*args()),
    "jvp": lambda f: jax.jvp(f, args(), args(1)),
    "linearize": lambda f: jax.linearize(f, *args())[1](*args(1)),
    "grad": lambda f: jax.grad(loss(f), EVERY)(*args()),
    "jit of grad": lambda f: jax.jit(jax.grad(loss(f), EVERY))(*args()),
    "jacfwd": lambda f: jax.jacfwd(f, (1, 4))(*args()),
    "jacrev": lambda f: jax.jacrev(f, (1, 4))(*args()),
    "vmap of x": lambda f: jax.vmap(f, OF_X)(several(args()[0]), *args()[1:]),
    "vmap of w, axis 1": lambda f: jax.vmap(f, (None, None, None, 1, None))(
        *args()[:3], jnp.stack([args()[3], args(1)[3]], 1), args()[4]
    ),
    "vmap of grad": lambda f: jax.vmap(jax.grad(loss(f), EVERY), OF_X)(several(args()[0]), *args()[1:]),
    "grad of vmap": lambda f: jax.grad(
        lambda *p: jnp.sum(jax.vmap(f, OF_X)(several(p[0]), *p[1:])[1] ** 2), EVERY
    )(*args()),
    "hessian": lambda f: jax.hessian(loss(f), (1, 4))(*args()),
    "jit of hessian": lambda f: jax.jit(jax.hessian(loss(f), 4))(*args()),
    "Hessian times a direction": lambda f: jax.jvp(jax.grad(loss(f), EVERY), args(), args(1)),
    "grad of grad": lambda f: jax.grad(inner(f), EVERY)(*args()),
    "jit of grad of grad": lambda f: jax.jit(jax.grad(inner(f), EVERY))(*args()),
    "grad of jvp": lambda f: jax.grad(lambda *p: jax.jvp(loss(f), p, args(1))[1], EVERY)(*args()),
    "checkpoint": lambda f: jax.grad(jax.checkpoint(loss(f)), EVERY)(*args()),
}  # fmt: skip
# ruff: noqa: E501 - a transform a line


def assert_alike(found: Any, expected: Any, tolerance: float = 1e-13) -> None:
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for a, e in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, e, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms_are_those_of_jax(name: str) -> None:
    assert_alike(TRANSFORMS[name](lstm), TRANSFORMS[name](in_jax))


@pytest.mark.parametrize(
    ("transform", "message"),
    [
        (
            lambda p: jax.jvp(lambda *p: jax.jvp(loss(lstm), p, args(1))[1], p, p),
            "block_lstm: there is no forward mode of forward mode",
        ),
        (
            lambda p: jax.grad(lambda b: jax.hessian(loss(lstm), 4)(*p[:4], b).sum())(p[4]),
            "block_lstm: there are no third derivatives",
        ),
    ],
)
def test_what_is_refused(transform: Any, message: str) -> None:
    with pytest.raises(NotImplementedError, match=f"^{message}"):
        transform(args())


SIZE = (T, B, I, H)
CALLS = {
    "block_lstm": Case("block_lstm", SIZE, direction="reverse", attributes=(("cell_clip", 0.5),)),
    "block_gru": Case("block_gru", SIZE),
    "cudnn_rnn": Case("cudnn_rnn-gru", SIZE, direction="both", layers=2, dropout=0.3),
    "stacked_rnn": Case(
        "stacked_rnn-LSTM", SIZE, direction="reverse", layers=2, time_major=False, dropout=0.4,
        projected=True, tapered=True, attributes=(("cell_clip", 0.5),),
    ),
    "cudnn_rnn, save": Case(
        "cudnn_rnn-lstm", SIZE, direction="both", layers=2, dropout=0.3, attributes=(("save", 3),)
    ),
    "stacked_rnn, save": Case("stacked_rnn-GRU", SIZE, layers=2, attributes=(("save", "states"),)),
}  # fmt: skip


def inputs_of(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the inputs of an op, and its attributes."""
    call = call_of(CALLS[name], np.random.default_rng(0))
    return jax.tree.map(jnp.asarray, call.swap_if_batch_first(call.inputs)), call.kwargs


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("jit", [False, True])
def test_ops_are_those_of_numpy(name: str, jit: bool) -> None:
    """Gradients with traced lengths equal vjp's, and so does the derivative along a direction."""
    inputs, attributes = inputs_of(name)
    record, wrap = CALLS[name].op.schema, jax.jit if jit else lambda f: f
    name = record.name

    def run(lengths: Any, inputs: Any) -> Any:
        return getattr(cj, name)(**inputs, sequence_lengths=lengths, **attributes)

    out, back = jax.vjp(lambda p: wrap(run)(LENGTHS, p), inputs)
    assert_alike(wrap(run)(LENGTHS, inputs), out)  # without the results for a gradient
    cotangents = jax.tree.map(lambda a: 0.5 + jnp.cos(a), out)
    (found,) = wrap(back)(cotangents)
    expected, pullback = cupyrnn.vjp(
        getattr(cupyrnn, name),
        **jax.tree.map(np.asarray, inputs),
        sequence_lengths=LENGTHS,
        **attributes,
    )
    given = {}
    for n in ("h",) if name == "block_gru" else out._fields:
        a, g = (of if name == "block_gru" else getattr(of, n) for of in (out, cotangents))
        if a is not None:
            assert_alike(jax.tree.leaves(a), jax.tree.leaves(getattr(expected, n)))
            given[record.cotangent.format(n)] = jax.tree.map(np.asarray, g)
    grads = pullback(**given)
    for n, a in found.items():
        if a is not None:
            due = getattr(grads, record.slope.format(n))
            assert_alike(jax.tree.leaves(a), jax.tree.leaves(due))
    direction = jax.tree.map(lambda a: jnp.sin(3 * a), inputs)
    _, moved = jax.jvp(lambda p: wrap(run)(LENGTHS, p), (inputs,), (direction,))
    slopes = (
        sum(float(jnp.sum(a * b)) for a, b in zip(*map(jax.tree.leaves, pair), strict=True))
        for pair in ((moved, cotangents), (found, direction))
    )
    assert abs(next(slopes) - next(slopes)) < 1e-12


def test_save_keeps_less_for_a_gradient() -> None:
    net = cupyrnn.init_params(num_layers=1, num_units=8, input_size=2, dtype="float64")
    x = jnp.ones((64, 4, 2))
    kept = []
    for save in ("all", "states", 8):

        def run(params: Any, save: Any = save) -> Any:
            return cj.cudnn_rnn(x, params=net._replace(params=params), save=save).output

        _, back = jax.vjp(run, net.params)
        kept.append(sum(a.nbytes for a in jax.tree.leaves(back)))
    assert kept[0] > 1.5 * kept[1] > 1.5 * kept[2]


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_dtypes(dtype: str) -> None:
    """Half formats have first derivatives; second ones raise the op's own error."""
    given = [a.astype(dtype) for a in args()]
    if dtype != "float32":
        message = f"^block_lstm: an input has dtype {dtype}, expected float32 or float64: half"
        with pytest.raises(TypeError, match=message):
            jax.jvp(lambda x: cj.block_lstm(x, *given[1:]).h, given[:1], given[:1])
    g = jax.grad(lambda *p: cj.block_lstm(*p).h.sum().astype("float32"), EVERY)(*given)
    assert {a.dtype.name for a in g} == {dtype}


def test_errors_come_while_a_call_is_traced() -> None:
    x, cs, h, w, b = args()
    message = r"^block_lstm: w has shape \(5, 12\), expected \(I\+H, 4\*H\) = \(6, 12\)"
    with pytest.raises(ValueError, match=message):
        jax.jit(lstm).lower(x, cs, h, w[1:], b)
    message = "^block_lstm: cell_clip is .*, expected a Python value: cell_clip is static"
    for clip in (jnp.float32(1), np.ones(1)):
        with pytest.raises(TypeError, match=message):
            cj.block_lstm(x, cs, h, w, b, cell_clip=clip)
    with pytest.raises(TypeError, match=message):
        jax.jit(lambda clip: cj.block_lstm(x, cs, h, w, b, cell_clip=clip).h)(1.0)
    packed = cupyrnn.init_params(num_layers=1, num_units=3, input_size=2, rnn_mode="gru")
    with pytest.raises(ValueError, match=r"^cudnn_rnn: rnn_mode is 'lstm', but params is of a net"):
        cj.cudnn_rnn(x, h, None, packed, rnn_mode="lstm")
    message = r"^cudnn_rnn: input_h is None, .*: pass zeros of shape \(L\*D, B, P\), or params as P"
    with pytest.raises(TypeError, match=message):
        cj.cudnn_rnn(x, params=packed.params.astype(x.dtype))
    for call, missing in (
        (lambda: cj.cudnn_rnn(x), "cudnn_rnn: missing argument params"),
        (lambda: cj.stacked_rnn(x, h), "stacked_rnn: missing argument weights"),
        (lambda: cj.block_lstm(x, b=b), "block_lstm: missing argument w;"),
        (lambda: cj.block_gru(x, None, w), "block_gru: missing arguments w_c, b_ru, b_c;"),
    ):
        with pytest.raises(TypeError, match=f"^{missing}"):
            call()


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"seed": 1.5}, TypeError, "seed is 1.5, expected an integer"),
        (
            {"seed": 2**70},
            ValueError,
            f"seed is {2**70}, expected a number that int64, JAX's dtype here",
        ),
        ({"seed": np.zeros(2, int)}, TypeError, r"seed is array\(\[0, 0\]"),
        ({"sequence_lengths": [4, 2, 9]}, ValueError, r"sequence_lengths\[2\] is 9, expected in"),
        ({"sequence_lengths": [4.0, 2, 1]}, TypeError, "sequence_lengths has dtype float64, "),
        ({"sequence_lengths": [2**32, 0, 0]}, ValueError, r"sequence_lengths\[0\] is 4294967296, "),
        ({"resets": np.zeros((4, 3))}, TypeError, "resets has dtype float64, expected bool"),
        (
            {"resets": np.zeros((3, 4), bool)},
            ValueError,
            r"resets has shape \(3, 4\), expected \(T, B",
        ),
        (
            {"resets": np.zeros((4, 3), bool), "time_major": False},
            ValueError,
            r"resets has shape \(4, 3\), expected \(B, T\) = \(3, 4\)",
        ),
    ],
)
def test_seeds_lengths_and_resets_are_checked_at_once(
    given: dict[str, Any], error: Any, message: str
) -> None:
    """JAX would truncate a number, or raise an error only when the call runs."""
    p = np.zeros(cupyrnn.cudnn_rnn_params_size(2, 3, 2))
    x, h = np.zeros((3, 4, 2) if "time_major" in given else (4, 3, 2)), np.zeros((2, 3, 3))
    if "time_major" in given:
        h = h.transpose(1, 0, 2)
    with pytest.raises(error, match=f"^cudnn_rnn: {message}"):
        cj.cudnn_rnn(x, h, h, p, dropout=0.5, **given)


ONE = [cupyrnn.init_block_lstm(num_units=3, input_size=3, dtype="float64")]


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"weights": None}, TypeError, "weights is None, expected a list of weight tuples"),
        ({"weights": iter(ONE)}, TypeError, "weights is a list_iterator, expected a list of"),
        ({"weights": []}, ValueError, r"weights has 0 entries, expected L\*D, at least 1"),
        ({"gate_order": "fico"}, ValueError, "gate_order is 'fico', expected one of icfo, ifco"),
        ({"save": 0}, ValueError, "save is 0, expected 'all', 'states' or k in"),
        ({"gate_order": ["icfo"]}, ValueError, r"gate_order is \['icfo'\], expected one of"),
        ({"input": "x"}, TypeError, "input is a str, expected a jax.Array or numpy.ndarray"),
        ({"input_h": [0.0]}, TypeError, "input_h is a list, expected arrays of JAX or NumPy"),
        ({"input": np.ones((4, 2, 3), object)}, TypeError, "input has dtype object, expected"),
        ({"input_h": np.ma.ones((1, 2, 3))}, TypeError, "input_h is a numpy.ma.MaskedArray, "),
        ({"input": np.ones((4, 2, 3), complex)}, TypeError, "input has dtype complex128, expected"),
    ],
)
def test_what_jax_itself_would_refuse_is_refused_by_name(
    given: dict[str, Any], error: Any, message: str
) -> None:
    x, h = np.ones((4, 2, 3)), np.zeros((1, 2, 3))
    arguments = {"input": x, "input_h": h, "input_c": h, "weights": ONE} | given
    with pytest.raises(error, match=f"^stacked_rnn: {message}"):
        cj.stacked_rnn(**arguments)


def test_large_seeds_are_those_of_numpy() -> None:
    """Without jax_enable_x64 a seed keeps all its bits or is refused."""
    draw = np.random.default_rng(0).normal
    x, h = draw(size=(4, 3, 2)).astype("f4"), np.zeros((2, 3, 3), "f4")
    p = draw(size=cupyrnn.cudnn_rnn_params_size(2, 3, 2)).astype("f4")
    with jax.enable_x64(False):
        for seed in (-1, 2**31 - 1, np.uint32(2**32 - 1), jnp.int32(7)):
            found = cj.cudnn_rnn(x, h, h, p, dropout=0.5, seed=seed).output
            expected = cupyrnn.cudnn_rnn(x, h, h, p, dropout=0.5, seed=int(seed)).output
            np.testing.assert_array_equal(found, expected)
        for wide in (2**31, np.int64(2**40 + 5)):
            with pytest.raises(
                ValueError, match=r"^cudnn_rnn: seed is .* expected a number that int32"
            ):
                cj.cudnn_rnn(x, h, h, p, dropout=0.5, seed=wide)


def test_of_traced_lengths_the_dtype_and_the_shape_are_checked() -> None:
    x, h, c, w, b = args()
    jitted = jax.jit(lambda n: cj.block_lstm(x, h, c, w, b, sequence_lengths=n).h)
    with pytest.raises(TypeError, match=r"^block_lstm: sequence_lengths has dtype float64"):
        jitted(jnp.ones(B))
    with pytest.raises(ValueError, match=r"^block_lstm: sequence_lengths has shape \(1,\)"):
        jitted(jnp.ones(1, int))
    seeded = jax.jit(lambda seed: cj.cudnn_rnn(
        x, h[None], c[None], np.zeros(cupyrnn.cudnn_rnn_params_size(1, H, I)), seed=seed
    ).output)  # fmt: skip
    with pytest.raises(TypeError, match=r"^cudnn_rnn: seed is array"):
        seeded(1.5)


def of_replicated(name: str) -> tuple[Any, ...]:
    """The loss of an op, its weights, which all devices share, and the arrays with a leading axis B."""
    weights, attributes = inputs_of(name)
    name = CALLS[name].op.schema.name
    is_net, major = name.endswith("rnn"), attributes.get("time_major", True)
    attributes |= {"dropout": 0.0} if is_net else {}
    first, axis = "x" if "x" in weights else "input", int(is_net and major)
    del weights[first]
    states = {n: weights.pop(n) for n in STATES if n in weights}

    def loss(weights: Any, x: Any, states: Any, lengths: Any) -> Any:
        if major:
            x = x.swapaxes(0, 1)
        states = jax.tree.map(lambda a: jnp.moveaxis(a, 0, axis), states)
        given = {first: x} | states | weights
        found = getattr(cj, name)(**given, sequence_lengths=lengths, **attributes)
        return sum(jnp.sum(jnp.sin(a) ** 2) for a in jax.tree.leaves(found))

    moved = jax.tree.map(lambda a: jnp.moveaxis(a, axis, 0), states)
    return loss, weights, drawn(B, T, I), moved, jnp.asarray(LENGTHS)


def over_devices(loss: Any, kind: str, **options: Any) -> Any:
    """The loss summed over two devices, or its gradient. Each device has a part of B."""
    spec = jax.sharding.PartitionSpec
    mesh = jax.make_mesh((2,), ("B",), axis_types=(jax.sharding.AxisType.Auto,))

    def whole(weights: Any, *data: Any) -> Any:
        if kind == "pcast":
            weights = jax.lax.pcast(weights, "B", to="varying")
        return jax.lax.psum(loss(weights, *data), "B")

    function = jax.grad(whole) if kind == "inside" else whole
    sharded = jax.shard_map(
        function, mesh=mesh, in_specs=(spec(), *[spec("B")] * 3), out_specs=spec(), **options
    )
    return sharded if kind == "inside" else jax.grad(sharded)


OVER_DEVICES: dict[str, Any] = {
    "outside": lambda f, *a: over_devices(f, "outside")(*a),
    "unchecked": lambda f, *a: over_devices(f, "outside", check_vma=False)(*a),
    "inside": lambda f, *a: over_devices(f, "inside")(*a),
    "pcast": lambda f, *a: over_devices(f, "pcast")(*a),
    "pmap": lambda f, w, *data: jax.grad(
        lambda w: jnp.sum(
            jax.pmap(f, in_axes=(None, 0, 0, 0))(w, *jax.tree.map(lambda a: a[:, None], data))
        )
    )(w),
}


@pytest.mark.parametrize("name", CALLS)
def test_gradients_of_replicated_weights_are_summed_over_devices(name: str) -> None:
    loss, *given = of_replicated(name)
    expected = jax.grad(loss)(*given)
    for transform in OVER_DEVICES.values():
        found = jax.jit(functools.partial(transform, loss))(*given)
        assert_alike(found, expected)


HARD = (("recurrent_activation", "hard_sigmoid_1/6"),)
OF_A_NET = {"direction": "both", "layers": 2, "projected": True, "attributes": HARD}


@pytest.mark.parametrize("case", [*CALLS.values(), Case("cudnn_rnn-lstm", SIZE, **OF_A_NET)])
def test_states_that_are_left_out_are_zeros(case: Case) -> None:
    """As None too. A PackedParams has the attributes of its net."""
    call, function = call_of(case, np.random.default_rng(0)), getattr(cj, case.op.schema.name)
    none, states = call.without_states(), [n for n in STATES if call.inputs.get(n) is not None]
    zeros = {n: jax.tree.map(jnp.zeros_like, call.inputs[n]) for n in states}
    expected = function(**call.swap_if_batch_first(call.inputs | zeros), **call.kwargs)
    of_net = cupyrnn.PackedParams._fields if "params" in call.inputs else ()
    said = {n: a for n, a in call.kwargs.items() if n not in of_net}
    left_out = {n: a for n, a in none.inputs.items() if n not in STATES}
    for given in (none.inputs, left_out):
        assert_alike(function(**call.swap_if_batch_first(given), **said), expected, 0)
