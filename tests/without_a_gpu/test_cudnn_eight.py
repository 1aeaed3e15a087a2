"""cuDNN 8 by CuPy 13: every argument of every call, against a module that records them."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from problems.nets import CASES, COTANGENTS, Case, case_id, cotangents_of, params_size

from cupyrnn.cudnn import eight, engine
from cupyrnn.cudnn import library as libcudnn
from without_a_gpu.cudnn_stub.eight import Legacy
from without_a_gpu.cudnn_stub.expected import CELLS, data_text, given, net_of, pointer, tensor_text

SMALL = Case("lstm", 3, 2, 4, 5)
LEGACY_CASES = [c for c in CASES if not c.num_proj and 0 not in (c.lengths or ())]


@pytest.mark.parametrize("case", LEGACY_CASES, ids=case_id)
def test_every_argument_of_both_passes_on_cudnn_8(
    cupy_on_cpu: Any, legacy: Callable[[int], Legacy], case: Case
) -> None:
    cupy, cudnn, net = cupy_on_cpu, legacy(params_size(case)), net_of(case)
    args = given(cupy, case, "float64")
    assert engine.why_not(net, "float64", args.lengths) is None
    output, output_h, output_c, reserve = engine.forward(net, args)
    h = tensor_text(case, "float64", case.H)
    x, y = (data_text(case, "float64", V) for V in (case.I, case.D * case.H))
    w = f"data 1 0 dims [{params_size(case)}, 1, 1]"
    attention = dict.fromkeys(
        ["kDesc", "keys", "cDesc", "cAttn", "iDesc", "iAttn", "qDesc", "queries"], 0
    )
    called = cudnn.last("RNNForwardTrainingEx")
    own = {n: called[n] for n in ("handle", "rnnDesc")}
    spaces = {"workSpaceSizeInBytes": 40, "reserveSpaceSizeInBytes": 37}
    assert called == own | spaces | attention | {
        **{"xDesc": x, "x": pointer(args.input), "wDesc": w, "w": pointer(args.params)},
        **{"hxDesc": h, "hx": pointer(args.input_h), "hyDesc": h, "hy": pointer(output_h)},
        **{"cxDesc": h, "cx": pointer(args.input_c), "cyDesc": h, "cy": pointer(output_c)},
        **{"yDesc": y, "y": pointer(output), "reserveSpace": pointer(reserve)},
        "workSpace": called["workSpace"],
    }
    described = cudnn.last("setRNNDescriptor_v6")
    assert described == {
        **{"handle": own["handle"], "rnnDesc": own["rnnDesc"], "hiddenSize": case.H},
        **{
            "numLayers": case.L,
            "dropoutDesc": described["dropoutDesc"],
            "inputMode": int(case.skip),
        },
        **{"direction": case.D - 1, "mode": CELLS[case.rnn_mode], "algo": 0, "dataType": 1},
    }
    assert cudnn.last("setRNNPaddingMode") == {"rnnDesc": own["rnnDesc"], "paddingMode": 1}
    assert cudnn.last("setStream")["stream"] == 0x57
    step = f"data 1 dims {case.B} {case.I} 1 strides {case.I} 1 1"
    for name in ("getRNNWorkspaceSize", "getRNNTrainingReserveSize"):
        found = cudnn.last(name)
        assert (found["seqLength"], found["xDesc"]) == (case.T, [step])
    assert cudnn.last("getRNNParamsSize")["xDesc"] == step

    before = reserve.tobytes()
    cotangents = cotangents_of(np.random.default_rng(0), case)
    dy, dhy, dcy = (cupy.asarray(cotangents[n]) if n in cotangents else None for n in COTANGENTS)
    for _ in range(2):
        dx, dhx, dcx, dw = engine.backward(net, args, output, (dy, dhy, dcy), reserve)
        assert reserve.tobytes() == before
        called = cudnn.last("RNNBackwardDataEx")
        own = {n: called[n] for n in ("handle", "rnnDesc", "workSpace", "reserveSpace")}
        nothing = dict.fromkeys(("dcDesc", "dcAttn", "dkDesc", "dkeys"), 0)
        assert called == own | spaces | nothing | {
            **{"yDesc": y, "y": pointer(output), "dyDesc": y, "dy": pointer(dy)},
            **{"dhyDesc": h, "dhy": pointer(dhy), "dcyDesc": h, "dcy": pointer(dcy)},
            **{"wDesc": w, "w": pointer(args.params), "dxDesc": x, "dx": pointer(dx)},
            **{"hxDesc": h, "hx": pointer(args.input_h), "dhxDesc": h, "dhx": pointer(dhx)},
            **{"cxDesc": h, "cx": pointer(args.input_c), "dcxDesc": h, "dcx": pointer(dcx)},
        }
        assert cudnn.last("RNNBackwardWeightsEx") == own | spaces | {
            **{
                "xDesc": x,
                "x": pointer(args.input),
                "hxDesc": h,
                "hx": pointer(args.input_h),
            },
            **{"yDesc": y, "y": pointer(output), "dwDesc": w, "dw": pointer(dw)},
        }
        np.testing.assert_array_equal(cupy.asnumpy(dw), np.ones(params_size(case)))
    inference = net._replace(is_training=False)
    assert engine.forward(inference, args)[3].shape == (0,)
    called = cudnn.last("RNNForwardInferenceEx")
    assert (called["hx"], called["workSpaceSizeInBytes"]) == (pointer(args.input_h), 40)


def test_dropout_and_half_precision_on_cudnn_8(
    cupy_on_cpu: Any, legacy: Callable[[int], Legacy]
) -> None:
    case = Case("gru", 3, 2, 4, 5, 2)
    cudnn, net = legacy(params_size(case)), net_of(case, dropout=0.5, seed=1, seed2=2)
    args = given(cupy_on_cpu, case, "float64")
    output, _, _, reserve = engine.forward(net, args)
    described, set_by_seed = [a for n, a in cudnn.log if n == "setDropoutDescriptor"]
    wanted = {"dropout": 0.5, "stateSizeInBytes": 64, "seed": 2**32 + 2}
    assert {n: set_by_seed[n] for n in wanted} == wanted
    assert {n: described[n] for n in wanted} == wanted | {"seed": 0}
    assert 0 != described["states"] != set_by_seed["states"] != 0
    engine.backward(net, args, output, (output, None, None), reserve)
    assert engine.reserve_size(net, "float64", None) == reserve.size == 5
    for seed2 in (5, 2, 5, 9, 2):
        engine.forward(net._replace(seed=0, seed2=seed2), args)
    assert cudnn.drawn == [(2**32 + 2) % 127, 5, 2, 5, 9, 2]
    # The states of the two seeds before are kept.
    sets = [a["seed"] for n, a in cudnn.log if n == "setDropoutDescriptor"]
    assert sets == [0, 2**32 + 2, 5, 2, 9, 2]
    cudnn.params_bytes //= 4
    engine.forward(net, given(cupy_on_cpu, case, "float16"))
    assert cudnn.last("setRNNDescriptor_v6")["dataType"] == 0
    assert cudnn.last("getRNNParamsSize")["dataType"] == 2


def test_what_cudnn_8_does_not_have(
    cupy_on_cpu: Any, legacy: Callable[[int], Legacy], monkeypatch: pytest.MonkeyPatch
) -> None:
    cudnn = legacy(params_size(SMALL))

    def lack(dtype: str = "float32", lengths: Any = None, **changed: Any) -> str | None:
        reason = engine.why_not(net_of(SMALL)._replace(**changed), dtype, lengths)
        if reason is None:
            return None
        found = re.fullmatch(
            r"cuDNN 8 through CuPy does not have (.*), and libcudnn\S+ was not found .*", reason
        )
        return found[1] if found else reason

    assert lack() is None
    assert lack(num_proj=3) == "num_proj = 3"
    assert lack(engine="cudnn_small_h") == "an algorithm of one's choice"
    assert lack("bfloat16") == "bfloat16"
    assert lack(lengths=np.array([3, 0], np.int32)) == "sequences of length 0"
    assert lack(lengths=np.array([3, 1], np.int32)) is None
    monkeypatch.setattr(cupy_on_cpu.cuda.Device, "compute_capability", property(lambda _: "80"))
    assert lack() == "float32 without TF32 on this device (CUPY_TF32=1 allows it)"
    assert lack("float64") is lack("float16") is None
    monkeypatch.setenv("CUPY_TF32", "1")
    assert lack() is None
    nine = libcudnn.find()
    for changes, reason in (
        ({"version": 7605}, "cupy.cuda.cudnn has cuDNN 7.6.5, expected 8"),
        ({"available": False}, "cupy.cuda.cudnn finds no libcudnn.so.8"),
    ):
        eight.module.cache_clear()
        for name, value in changes.items():
            monkeypatch.setattr(cudnn, name, value, raising=False)
        assert lack() == f"{nine}; {reason}"
    monkeypatch.setitem(sys.modules, "cupy.cuda.cudnn", None)
    eight.module.cache_clear()
    assert lack() == f"{nine}; this CuPy has no cupy.cuda.cudnn"
