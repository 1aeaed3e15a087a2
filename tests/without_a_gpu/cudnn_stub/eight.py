"""What CuPy 13 has of cuDNN 8, recording."""

from __future__ import annotations

import ctypes
import itertools
import types
from typing import Any

# The calls of cupy.cuda.cudnn with the parameters that CuPy 13 gives them.
LEGACY = {
    "create": "",
    "destroy": "handle",
    "setStream": "handle stream",
    "getVersion": "",
    **{
        f"{verb}{kind}Descriptor": "" if verb == "create" else "desc"
        for verb in ("create", "destroy")
        for kind in ("Dropout", "RNN", "RNNData", "Tensor", "Filter")
    },
    "dropoutGetStatesSize": "handle",
    "setDropoutDescriptor": "dropoutDesc handle dropout states stateSizeInBytes seed",
    "setRNNDescriptor_v6": "handle rnnDesc hiddenSize numLayers dropoutDesc inputMode direction"
    " mode algo dataType",
    "setRNNPaddingMode": "rnnDesc paddingMode",
    "setRNNDataDescriptor": "RNNDataDesc dataType layout maxSeqLength batchSize vectorSize"
    " seqLengthArray paddingFill",
    "setTensorNdDescriptor": "tensorDesc dataType nbDims dimA strideA",
    "setFilterNdDescriptor_v4": "filterDesc dataType format nbDims filterDimA",
    "getRNNWorkspaceSize": "handle rnnDesc seqLength xDesc",
    "getRNNTrainingReserveSize": "handle rnnDesc seqLength xDesc",
    "getRNNParamsSize": "handle rnnDesc xDesc dataType",
    "RNNForwardInferenceEx": "handle rnnDesc xDesc x hxDesc hx cxDesc cx wDesc w yDesc y hyDesc"
    " hy cyDesc cy kDesc keys cDesc cAttn iDesc iAttn qDesc queries workSpace"
    " workSpaceSizeInBytes",
    "RNNForwardTrainingEx": "handle rnnDesc xDesc x hxDesc hx cxDesc cx wDesc w yDesc y hyDesc hy"
    " cyDesc cy kDesc keys cDesc cAttn iDesc iAttn qDesc queries workSpace workSpaceSizeInBytes"
    " reserveSpace reserveSpaceSizeInBytes",
    "RNNBackwardDataEx": "handle rnnDesc yDesc y dyDesc dy dcDesc dcAttn dhyDesc dhy dcyDesc dcy"
    " wDesc w hxDesc hx cxDesc cx dxDesc dx dhxDesc dhx dcxDesc dcx dkDesc dkeys workSpace"
    " workSpaceSizeInBytes reserveSpace reserveSpaceSizeInBytes",
    "RNNBackwardWeightsEx": "handle rnnDesc xDesc x hxDesc hx yDesc y workSpace"
    " workSpaceSizeInBytes dwDesc dw reserveSpace reserveSpaceSizeInBytes",
}


def integers(address: int, count: int) -> list[int]:
    return list((ctypes.c_int32 * count).from_address(address))


class Legacy(types.ModuleType):
    """cupy.cuda.cudnn of CuPy 13, recording; descriptors are shown by what was set."""

    WORK, RESERVE = 40, 37
    version = 8907

    def __init__(self, params_bytes: int) -> None:
        super().__init__("cupy.cuda.cudnn")
        self.params_bytes = params_bytes
        self.log: list[tuple[str, dict[str, Any]]] = []
        self.texts: dict[int, str] = {}
        self.alive: set[int] = set()
        self.states: dict[int, int] = {}  # of dropout descriptors and nets
        self.drawn: list[int] = []  # what the masks of the forward calls depend on
        self.numbers = itertools.count(1000)

    def __getattr__(self, name: str) -> Any:
        if name not in LEGACY:
            raise AttributeError(name)
        names = LEGACY[name].split()

        def call(*args: Any) -> Any:
            assert len(args) == len(names), name
            for a, n in zip(args, names, strict=True):
                assert isinstance(a, float if n == "dropout" else int), (name, n, a)
            return self._do(name, dict(zip(names, args, strict=True)))

        return call

    def last(self, name: str) -> dict[str, Any]:
        return next(a for n, a in reversed(self.log) if n == name)

    def _do(self, name: str, a: dict[str, Any]) -> Any:
        if name.startswith("create"):
            made = next(self.numbers)
            if name != "create":
                self.alive.add(made)
            return made
        if name.startswith("destroy"):
            return self.alive.discard(a.get("desc", 0))
        if name == "setDropoutDescriptor":
            self.states[a["dropoutDesc"]] = a["states"]
            if a["states"]:
                ctypes.memset(a["states"], a["seed"] % 127, a["stateSizeInBytes"])
        elif name == "setRNNDescriptor_v6":
            self.states[a["rnnDesc"]] = self.states[a["dropoutDesc"]]
        elif name == "setRNNDataDescriptor":
            sizes = [a[n] for n in ("maxSeqLength", "batchSize", "vectorSize")]
            assert ctypes.c_uint64.from_address(a["paddingFill"]).value == 0
            lengths = " ".join(map(str, integers(a["seqLengthArray"], sizes[1])))
            self.texts[a["RNNDataDesc"]] = (
                f"data {a['dataType']} layout {a['layout']} T {sizes[0]} B {sizes[1]}"
                f" V {sizes[2]} fill 0 lengths {lengths}"
            )
        elif name == "setTensorNdDescriptor":
            assert a["nbDims"] == 3
            dims, strides = (" ".join(map(str, integers(a[n], 3))) for n in ("dimA", "strideA"))
            text = f"data {a['dataType']} dims {dims} strides {strides}"
            self.texts[a["tensorDesc"]] = text
        elif name == "setFilterNdDescriptor_v4":
            dims = integers(a["filterDimA"], a["nbDims"])
            self.texts[a["filterDesc"]] = f"data {a['dataType']} {a['format']} dims {dims}"
        elif name in ("getRNNWorkspaceSize", "getRNNTrainingReserveSize"):
            array = (ctypes.c_size_t * a["seqLength"]).from_address(a["xDesc"])
            a["xDesc"] = sorted({self.texts[d] for d in array})
        shown = {
            n: self.texts.get(v, v) if n.endswith("Desc") and v in self.texts else v
            for n, v in a.items()
            if not isinstance(v, list)
        }
        self.log.append((name, {**a, **shown}))
        if name == "RNNForwardTrainingEx" and self.states[a["rnnDesc"]]:
            states = (ctypes.c_ubyte * 64).from_address(self.states[a["rnnDesc"]])
            self.drawn.append(states[0])
            ctypes.memset(states, states[0] + 1, 64)  # drawing changes them
        if name.startswith(("RNNForwardT", "RNNBackward")):
            assert (a["workSpaceSizeInBytes"], a["reserveSpaceSizeInBytes"]) == (40, 37)
            reserve = (ctypes.c_char * 37).from_address(a["reserveSpace"])
            state = {"RNNForwardTrainingEx": 1, "RNNBackwardDataEx": 2, "RNNBackwardWeightsEx": 3}
            expected = bytes([state[name] - 1] * 37)
            assert name == "RNNForwardTrainingEx" or reserve.raw == expected, name
            reserve.raw = bytes([state[name]] * 37)
        if name == "RNNBackwardWeightsEx":
            dw = (ctypes.c_double * (self.params_bytes // 8)).from_address(a["dw"])
            dw[:] = [v + 1 for v in dw]
        return {
            "getVersion": self.version,
            "dropoutGetStatesSize": 64,
            "getRNNWorkspaceSize": self.WORK,
            "getRNNTrainingReserveSize": self.RESERVE,
            "getRNNParamsSize": self.params_bytes,
        }.get(name)
