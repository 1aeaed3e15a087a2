"""Variables of TensorFlow 1 by their names in a checkpoint; data/make_golden_models.py ran them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from checks import assert_close
from data import make_golden_models as models

import cupyrnn


def run_packed(packed: cupyrnn.PackedParams, x: Any) -> Any:
    h, c = packed.zero_state(x.shape[1])
    attributes: Any = {"rnn_mode": packed.rnn_mode, "direction": packed.direction}
    attributes["num_proj"] = packed.num_proj
    return cupyrnn.cudnn_rnn(x, h, c, packed.params, **attributes).output


@pytest.mark.parametrize(
    ("name", "options", "net"),
    [
        ("basic_lstm", {"forget_bias": 1}, (1, 3, 4, "lstm", "unidirectional", 0)),
        ("projection", {"forget_bias": 0.5}, (1, 3, 4, "lstm", "unidirectional", 2)),
        ("rnn", {"rnn_mode": "rnn_tanh"}, (1, 3, 4, "rnn_tanh", "unidirectional", 0)),
        ("layers", {"forget_bias": 1}, (2, 3, 4, "lstm", "unidirectional", 0)),
        ("bidirectional", {"forget_bias": 1}, (1, 3, 4, "lstm", "bidirectional", 0)),
        ("stack", {"forget_bias": 1}, (2, 3, 4, "lstm", "bidirectional", 0)),
    ],
)
def test_stored_nets(name: str, options: Any, net: Any) -> None:
    golden = models.load(name)
    packed = cupyrnn.weights.params_from_tf1(golden.variables, **options)
    assert packed[1:-2] == net
    assert_close(run_packed(packed, golden.x), golden.y, "float64", "output")


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("basic_lstm", {"forget_bias": 1, "cell_clip": 0}),
        ("peepholes", {"forget_bias": 1, "cell_clip": 0.3}),
    ],
)
def test_stored_lstm_cells(name: str, options: Any) -> None:
    """Cells beside an optimizer's variables and another layer, and the conversion back."""
    golden = models.load(name)
    (kernel,) = (n for n in golden.variables if n.endswith("kernel"))
    path = kernel.removesuffix("/kernel")
    others = {f"{n}/Adam": np.ones(1) for n in golden.variables}
    others |= {"beta1_power": 0.9, "global_step": 3, "dense/kernel": np.ones((3, 4))}
    weights = cupyrnn.weights.block_lstm_from_tf1({**others, **golden.variables}, prefix="rnn")
    assert (weights.wco is None) == (name == "basic_lstm")
    zeros = np.zeros((3, 3))
    out = cupyrnn.block_lstm(golden.x, zeros, zeros, **weights.arguments, **options)
    assert_close(out.h, golden.y, "float64", "h")
    back = cupyrnn.weights.block_lstm_to_tf1(*weights, prefix=path)
    assert back.keys() == golden.variables.keys()
    for n, a in back.items():
        np.testing.assert_array_equal(a, golden.variables[n])
        assert a is not golden.variables[n]


OLD = {"kernel": "W_0", "bias": "B", "projection/kernel": "W_P_0"}
OLD |= {f"w_{gate}_diag": f"W_{gate.upper()}_diag" for gate in "ifo"}


@pytest.mark.parametrize("old", [False, True])
def test_a_stored_cell_with_both_clips(old: bool) -> None:
    """LSTMCell(num_proj, use_peepholes, cell_clip, proj_clip): outputs and all gradients."""
    golden, path = models.load("clips"), "rnn/lstm_cell/"
    variables, prefix = golden.variables, ""
    if old:
        prefix = "RNN_0/RNN/MultiRNNCell/Cell0/LSTMCell"
        variables = {f"{prefix}/{OLD[n.removeprefix(path)]}": a for n, a in variables.items()}
        variables |= {n.replace("Cell0", "Cell1"): a for n, a in variables.items()}
    weights = cupyrnn.weights.block_lstm_from_tf1(variables, prefix=prefix)
    clips = {"cell_clip": 0.4, "proj_clip": 0.5}
    out, pullback = cupyrnn.vjp(cupyrnn.stacked_rnn, golden.x, weights=[weights], **clips)
    assert_close(out.output, golden.y, "float64", "output")
    assert (abs(golden.y) == 0.5).any()
    assert golden.gradients is not None
    grads = pullback(output=golden.dy)
    found = cupyrnn.weights.block_lstm_to_tf1(*grads.weights_backprop[0], prefix=path)
    for n, a in {"x": grads.input_backprop, **found}.items():
        assert_close(a, golden.gradients[n], "float64", n)


@pytest.mark.parametrize("own_names", [False, True])
def test_a_stored_gru_cell(own_names: bool) -> None:
    """GRUCell and GRUBlockCellV2 by their names, and GRUBlockCell by its own."""
    golden = models.load("gru")
    variables = golden.variables
    if own_names:
        new = {"gates/kernel": "w_ru", "gates/bias": "b_ru"}
        new |= {"candidate/kernel": "w_c", "candidate/bias": "b_c"}
        path = "rnn/gru_cell/"
        variables = {path + new[n.removeprefix(path)] + ":0": a for n, a in variables.items()}
    (weights,) = cupyrnn.weights.params_from_tf1(variables)
    out = cupyrnn.block_gru(golden.x, np.zeros((3, 3)), *weights)
    assert_close(out.h, golden.y, "float64", "h")
    back = cupyrnn.weights.params_to_tf1(weights, prefix="rnn/gru_cell/")
    np.testing.assert_equal(back, golden.variables)
    back = cupyrnn.weights.params_to_tf1([weights], like=variables)
    np.testing.assert_equal(back, variables)


def cudnn_compatible_gru(v: dict[str, Any], x: Any) -> Any:
    """CudnnCompatibleGRUCell over [T, B, I]: r and u have one bias, c two."""
    K, H = v["candidate/input_projection/kernel"].shape
    gates, bias = v["gates/kernel"], v["gates/bias"]
    w_x, w_h = (
        np.concatenate([rows, v[f"candidate/{part}_projection/kernel"]], 1)
        for part, rows in (("input", gates[:K]), ("hidden", gates[K:]))
    )
    b_x, b_h = (
        np.concatenate([b, v[f"candidate/{part}_projection/bias"]])
        for part, b in (("input", bias), ("hidden", 0 * bias))
    )
    return cupyrnn.reference.gru_reset_after(x, np.zeros((x.shape[1], H)), w_x, w_h, b_x, b_h).h


def test_the_cudnn_compatible_gru_cell(rng: np.random.Generator) -> None:
    I, H = 4, 3
    v: dict[str, Any] = {
        "gates/kernel": rng.standard_normal((I + H, 2 * H)),
        "gates/bias": rng.standard_normal(2 * H),
    }
    for part, rows in (("input", I), ("hidden", H)):
        v[f"candidate/{part}_projection/kernel"] = rng.standard_normal((rows, H))
        v[f"candidate/{part}_projection/bias"] = rng.standard_normal(H)
    path = "rnn/multi_rnn_cell/cell_0/cudnn_compatible_gru_cell/"
    packed = cupyrnn.weights.params_from_tf1({path + n: a for n, a in v.items()})
    x = rng.standard_normal((5, 2, I))
    assert_close(run_packed(packed, x), cudnn_compatible_gru(v, x), "float64", "output")
    back = cupyrnn.weights.params_to_tf1(packed)
    np.testing.assert_equal(back, {path + n: a for n, a in v.items()})
    for leaf in ("kernel", "bias", "candidate/kernel", "w_f_diag"):  # which other cells have
        with pytest.raises(ValueError, match=r"cudnn_compatible_gru_cell"):
            cupyrnn.weights.params_from_tf1(back | {path + leaf: np.zeros(H)})


@pytest.mark.parametrize("prefix", ["rnn", "rnn/"])
def test_a_prefix_ends_where_a_name_does(prefix: str) -> None:
    """The names in rnn_2 are not in rnn."""
    one, other = (
        cupyrnn.weights.params_to_tf1(
            cupyrnn.init_params(num_layers=1, num_units=H, input_size=2, seed=0), prefix=path
        )
        for H, path in ((3, "rnn"), (4, "rnn_2"))
    )
    found, alone = (cupyrnn.weights.params_from_tf1(v, prefix=prefix) for v in (one | other, one))
    np.testing.assert_array_equal(found.params, alone.params)


def test_an_incomplete_checkpoint_is_refused() -> None:
    """Every missing variable is noticed: a smaller net would be another one."""
    for options in ({}, {"rnn_mode": "gru"}, {"direction": "bidirectional"}):
        whole = cupyrnn.weights.params_to_tf1(
            cupyrnn.init_params(num_layers=2, num_units=2, input_size=3, **options)
        )
        for name in whole:
            part = {n: a for n, a in whole.items() if n != name}
            with pytest.raises(ValueError, match=r"^params_from_tf1: variables has "):
                cupyrnn.weights.params_from_tf1(part)
        if options.get("direction"):
            part = {n: a for n, a in whole.items() if "bw" not in n}
            with pytest.raises(ValueError, match="has no cell for layer 0, bw"):
                cupyrnn.weights.params_from_tf1(part)


def test_cells_of_cudnn_lstm_have_their_forget_bias() -> None:
    variables = cupyrnn.weights.params_to_tf1(
        cupyrnn.init_params(num_layers=2, num_units=2, input_size=3, forget_bias=1)
    )
    packed = cupyrnn.weights.params_from_tf1(variables)
    for none in (0, 0.0, np.float32(0)):
        again = cupyrnn.weights.params_from_tf1(variables, forget_bias=none)
        np.testing.assert_array_equal(again.params, packed.params)
    for forget_bias in (1, -0.5, np.nan):
        with pytest.raises(ValueError, match=r"forget_bias is .*, expected 0 or None: rnn/multi"):
            cupyrnn.weights.params_from_tf1(variables, forget_bias=forget_bias)


@pytest.mark.parametrize("shape", [(2, 100), (25, 100), (2, 3), (3,)])
@pytest.mark.parametrize("name", ["rnn_fc", "lstm_out", "my_gru_logits_1"])
def test_a_layer_behind_a_cell(name: str, shape: tuple[int, ...]) -> None:
    """A layer with a cell's name but not its shape is ignored; a clear name raises an error."""
    net = cupyrnn.init_params(num_layers=1, num_units=2, input_size=3)
    variables = cupyrnn.weights.params_to_tf1(net)
    for weights, bias in (("weights", "biases"), ("kernel", "bias")):
        dense = {f"{name}/{weights}": np.ones(shape), f"{name}/{bias}": np.ones(shape[-1])}
        packed = cupyrnn.weights.params_from_tf1(variables | dense)
        np.testing.assert_array_equal(
            packed.params, cupyrnn.weights.params_from_tf1(variables).params
        )
    for possible in ({f"{name}/kernel": np.ones((26, 100))}, {"lstm_1/kernel": np.ones(shape)}):
        with pytest.raises(ValueError, match="two cells for layer 0"):
            cupyrnn.weights.params_from_tf1(variables | possible)


def test_what_is_no_cell(rng: np.random.Generator) -> None:
    """Optimizer slots, averages and dense layers, beside a cell and without one."""
    whole = cupyrnn.weights.params_to_tf1(
        cupyrnn.init_params(num_layers=2, num_units=2, input_size=3)
    )
    others = {f"{n}/Adam_1": a for n, a in whole.items()}
    others |= {f"Adam/{n}": a for n, a in whole.items()}
    others |= {"encoder/layer_norm/gamma": np.ones(2), "beta": np.ones(2)}
    for path in ("dense", "rnn/dense_1", "logits", "out", "fully_connected"):
        others |= {f"{path}/kernel": np.ones((6, 8)), f"{path}/bias": np.ones(8)}
    both = {**others, **whole, "beta1_power": np.ones(())}
    packed = cupyrnn.weights.params_from_tf1(both)
    np.testing.assert_array_equal(packed.params, cupyrnn.weights.params_from_tf1(whole).params)
    weights = cupyrnn.weights.block_lstm_from_tf1(
        {"dense/kernel": np.ones((6, 8)), "dense/bias": np.ones(8)}, prefix="dense"
    )
    assert weights.w.shape == (6, 8)  # it counts as a cell if the caller names it
    del both["rnn/multi_rnn_cell/cell_1/cudnn_compatible_lstm_cell/kernel"]
    with pytest.raises(ValueError, match="the cell is incomplete"):
        cupyrnn.weights.params_from_tf1(both)


def test_names_from_before_1_2(rng: np.random.Generator) -> None:
    w, b, wci, wcf, wco = (rng.standard_normal(s) for s in [(5, 8), 8, 2, 2, 2])
    leaves = "weights", "biases", "w_i_diag", "w_f_diag", "w_o_diag"
    for names in (leaves, ("W_0", "B", "W_I_diag", "W_F_diag", "W_O_diag")):
        values = zip(names, (w, b, wci, wcf, wco), strict=True)
        old = {f"rnn/lstm_cell/{name}": a for name, a in values}
        weights = cupyrnn.weights.block_lstm_from_tf1(old)
        np.testing.assert_equal(weights[:5], (w, b, wci, wcf, wco))
        np.testing.assert_equal(cupyrnn.weights.block_lstm_to_tf1(*weights, like=old), old)
    packed = cupyrnn.weights.params_from_tf1(
        {"rnn/basic_lstm_cell/weights": w, "rnn/basic_lstm_cell/biases": b}, forget_bias=1
    )
    assert packed[1:5] == (1, 2, 3, "lstm")
    gru = cupyrnn.BlockGRUParams(*(rng.standard_normal(s) for s in [(5, 4), (5, 2), 4, 2]))
    new = cupyrnn.weights.params_to_tf1(gru)
    old = {n.replace("kernel", "weights").replace("bias", "biases"): a for n, a in new.items()}
    assert list(old) == ["gates/weights", "candidate/weights", "gates/biases", "candidate/biases"]
    np.testing.assert_equal(cupyrnn.weights.params_from_tf1(old), [gru])
    np.testing.assert_equal(cupyrnn.weights.params_to_tf1(gru, like=old), old)


def test_peepholes_and_a_projection(rng: np.random.Generator) -> None:
    """LSTMCell(use_peepholes=True, num_proj=P), and the conversion back."""
    K, H, P = 3, 4, 2
    shapes = {"kernel": (K + P, 4 * H), "bias": (4 * H,), "projection/kernel": (H, P)}
    shapes |= {f"w_{gate}_diag": (H,) for gate in "ifo"}
    variables = {f"rnn/lstm_cell/{n}": rng.standard_normal(s) for n, s in shapes.items()}
    weights = cupyrnn.weights.block_lstm_from_tf1(variables)
    np.testing.assert_array_equal(weights.w_p, variables["rnn/lstm_cell/projection/kernel"])
    back = cupyrnn.weights.block_lstm_to_tf1(*weights, prefix="rnn/lstm_cell")
    np.testing.assert_equal(back, variables)
    x, h, c = rng.standard_normal((5, 1, K)), np.zeros((1, 1, P)), np.zeros((1, 1, H))
    out = cupyrnn.stacked_rnn(x, h, c, [weights], cell_clip=0)
    assert out.output.shape == (5, 1, P)
    with pytest.raises(
        ValueError, match="w_p is an array, expected None: block_lstm has no projection"
    ):
        _ = weights.arguments
    with pytest.raises(
        ValueError, match=r"weights\[0\].w_p is an array, expected None: ONNX has no projection"
    ):
        cupyrnn.weights.block_lstm_to_onnx([weights])


def test_a_projection_to_less_than_the_units(rng: np.random.Generator) -> None:
    """The kernel has I + P rows, which may be fewer than H. None are left for x in the last."""
    H, P = 12, 3
    for I in (4, 0):
        shapes = {"kernel": (I + P, 4 * H), "bias": (4 * H,), "projection/kernel": (H, P)}
        variables = {f"rnn/lstm_cell/{n}": rng.standard_normal(s) for n, s in shapes.items()}
        if I:
            weights = cupyrnn.weights.block_lstm_from_tf1(variables)
            np.testing.assert_array_equal(weights.w, variables["rnn/lstm_cell/kernel"])
            np.testing.assert_array_equal(weights.w_p, variables["rnn/lstm_cell/projection/kernel"])
            packed = cupyrnn.weights.params_from_tf1(variables, forget_bias=1)
            assert (packed.input_size, packed.num_units, packed.num_proj) == (I, H, P)
        else:
            with pytest.raises(ValueError, match=r"has shape \(3, 48\), expected \(I\+P, 4\*H\)"):
                cupyrnn.weights.block_lstm_from_tf1(variables)


@pytest.mark.parametrize("name", ["basic_lstm", "projection", "layers", "bidirectional", "stack"])
def test_a_net_is_written_back(name: str, rng: np.random.Generator) -> None:
    """With the names that were read, and without the forget_bias that the cells add."""
    golden, forget_bias = models.load(name), 0.5 if name == "projection" else 1
    variables = {f"{n}:0": a for n, a in golden.variables.items()} | {"dense/kernel": np.ones(2)}
    packed = cupyrnn.weights.params_from_tf1(variables, forget_bias=forget_bias)
    back = cupyrnn.weights.params_to_tf1(packed, like=variables, forget_bias=forget_bias)
    assert back.keys() == variables.keys() - {"dense/kernel"}
    for n, a in back.items():
        assert_close(a, variables[n], "float64", n)
    g = packed._replace(params=rng.standard_normal(packed.params.shape))
    grads = cupyrnn.weights.params_to_tf1(g, like=variables, forget_bias=forget_bias, gradient=True)
    zero, moved = (
        cupyrnn.weights.params_from_tf1({n: k * a for n, a in back.items()}, forget_bias=0).params
        for k in (0, 1)
    )
    total = sum(float(np.sum(grads[n] * a)) for n, a in back.items())
    assert_close(total, float(g.params @ (moved - zero)), "float64", "product of both")


def test_layers_of_grus_are_read_and_written(rng: np.random.Generator) -> None:
    """A MultiRNNCell of GRUCells, and fw and bw, become lists for stacked_rnn."""
    for places, kinds in (
        (["multi_rnn_cell/cell_0", "multi_rnn_cell/cell_1"], [3, 2]),
        (["bidirectional_rnn/fw", "bidirectional_rnn/bw"], [3, 3]),
    ):
        variables: dict[str, Any] = {}
        for place, I in zip(places, kinds, strict=True):
            for leaf, shape in (("gates", (I + 2, 4)), ("candidate", (I + 2, 2))):
                path = f"rnn/{place}/gru_cell/{leaf}"
                variables[f"{path}/kernel"] = rng.standard_normal(shape)
                variables[f"{path}/bias"] = rng.standard_normal(shape[1])
        weights = cupyrnn.weights.params_from_tf1(variables)
        for entry, place in zip(weights, places, strict=True):
            path = f"rnn/{place}/gru_cell"
            np.testing.assert_array_equal(entry.w_c, variables[f"{path}/candidate/kernel"])
        back = cupyrnn.weights.params_to_tf1(weights, like=variables)
        np.testing.assert_equal(back, variables)
