"""cupy.cuda.cudnn of CuPy 13, which records its calls."""

from __future__ import annotations

import ctypes
import itertools
import types
from typing import Any

# The functions that the package calls, with their parameters in CuPy 13.
FUNCTIONS = {
    "getVersion": "",
    "create": "",
    "destroy": "handle",
    "setStream": "handle stream",
    "createDropoutDescriptor": "",
    "destroyDropoutDescriptor": "dropoutDesc",
    "dropoutGetStatesSize": "handle",
    "setDropoutDescriptor": "dropoutDesc handle dropout states stateSizeInBytes seed",
    "createRNNDescriptor": "",
    "destroyRNNDescriptor": "rnnDesc",
    "setRNNDescriptor_v6": "handle rnnDesc hiddenSize numLayers dropoutDesc inputMode direction"
    " mode algo dataType",
    "setRNNPaddingMode": "rnnDesc paddingMode",
    "createRNNDataDescriptor": "",
    "destroyRNNDataDescriptor": "RNNDataDesc",
    "setRNNDataDescriptor": "RNNDataDesc dataType layout maxSeqLength batchSize vectorSize"
    " seqLengthArray paddingFill",
    "createTensorDescriptor": "",
    "destroyTensorDescriptor": "tensorDesc",
    "setTensorNdDescriptor": "tensorDesc dataType nbDims dimA strideA",
    "createFilterDescriptor": "",
    "destroyFilterDescriptor": "filterDesc",
    "setFilterNdDescriptor_v4": "filterDesc dataType format nbDims filterDimA",
    "getRNNParamsSize": "handle rnnDesc xDesc dataType",
    "getRNNWorkspaceSize": "handle rnnDesc seqLength xDesc",
    "getRNNTrainingReserveSize": "handle rnnDesc seqLength xDesc",
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
STATES, WORK, RESERVE = 64, 40, 37  # bytes
RESULTS = {
    "dropoutGetStatesSize": STATES, "getRNNWorkspaceSize": WORK,
    "getRNNTrainingReserveSize": RESERVE,
}  # fmt: skip
# The bytes of the reserve that each call needs are one less than those that it leaves.
ORDER = {"RNNForwardTrainingEx": 1, "RNNBackwardDataEx": 2, "RNNBackwardWeightsEx": 3}


class CuDNNError(RuntimeError):
    """CuPy's error."""

    def __init__(self, status: int) -> None:
        super().__init__(f"cuDNN Error: STATUS_{status}")
        self.status = status


class CupyCudnn(types.ModuleType):
    """The module. Calls show a descriptor by the values that were set."""

    CuDNNError = CuDNNError

    def __init__(self, params_bytes: int) -> None:
        super().__init__("cupy.cuda.cudnn")
        self.available, self.version, self.params_bytes = True, 8907, params_bytes
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.failing: dict[str, int] = {}  # the status of a function that fails
        self.texts: dict[int, str] = {}  # of the descriptors that exist
        self.states: dict[int, int] = {}  # the address of the generator's, by a descriptor
        self.drawn: list[int] = []  # what the masks of the forward calls depend on
        self._numbers = itertools.count(1000)

    def last(self, name: str) -> dict[str, Any]:
        """Return the arguments of the last call of a function."""
        return next(args for called, args in reversed(self.calls) if called == name)

    def __getattr__(self, name: str) -> Any:
        if name not in FUNCTIONS:
            raise AttributeError(name)
        names = FUNCTIONS[name].split()

        def call(*args: Any) -> Any:
            given = dict(zip(names, args, strict=True))
            for n, a in given.items():
                assert isinstance(a, float if n == "dropout" else int), (name, n, a)
            if name in self.failing:
                raise CuDNNError(self.failing.pop(name))
            found = self._run(name, given)
            self.calls.append((name, {n: self._text(n, a) for n, a in given.items()}))
            return found

        return call

    def _text(self, name: str, value: Any) -> Any:
        return self.texts.get(value, value) if name.endswith("Desc") else value

    def _run(self, name: str, a: dict[str, Any]) -> Any:
        if name.startswith("create"):
            made = next(self._numbers)
            self.texts.update({made: "new"} if name != "create" else {})
            return made
        if name.startswith("destroy"):
            return self.texts.pop(a.popitem()[1], None)
        if name.startswith("set") and name != "setStream":
            return self._set(name, a)
        if name.startswith("RNN"):
            self._compute(name, a)
        if name in ("getRNNWorkspaceSize", "getRNNTrainingReserveSize"):
            of_each = (ctypes.c_size_t * a["seqLength"]).from_address(a["xDesc"])
            (a["xDesc"],) = {self.texts[d] for d in of_each}
        sizes = {"getVersion": self.version, "getRNNParamsSize": self.params_bytes}
        return (RESULTS | sizes).get(name)

    def _set(self, name: str, a: dict[str, Any]) -> None:
        def integers(at: str, count: int) -> str:
            return " ".join(map(str, (ctypes.c_int32 * count).from_address(a[at])))

        if name == "setRNNDescriptor_v6":
            net = {n: self._text(n, v) for n, v in a.items() if n not in ("handle", "rnnDesc")}
            self.texts[a["rnnDesc"]] = " ".join(f"{n} {v}" for n, v in net.items())
            self.states[a["rnnDesc"]] = self.states[a["dropoutDesc"]]
        elif name == "setRNNPaddingMode":
            self.texts[a["rnnDesc"]] += f" padded {a['paddingMode']}"
        elif name == "setDropoutDescriptor":
            self.texts[a["dropoutDesc"]] = f"rate {a['dropout']:g}"
            self.states[a["dropoutDesc"]] = a["states"]
            if a["states"]:
                ctypes.memset(a["states"], a["seed"] % 127, a["stateSizeInBytes"])
        elif name == "setRNNDataDescriptor":
            fill = ctypes.c_uint64.from_address(a["paddingFill"]).value
            self.texts[a["RNNDataDesc"]] = (
                f"data {a['dataType']} layout {a['layout']} T {a['maxSeqLength']}"
                f" B {a['batchSize']} V {a['vectorSize']} fill {fill}"
                f" lengths {integers('seqLengthArray', a['batchSize'])}"
            )
        else:
            first, dims = ("tensorDesc", "dimA") if "strideA" in a else ("filterDesc", "filterDimA")
            text = f"data {a['dataType']} dims {integers(dims, a['nbDims'])}"
            kind = f" strides {integers('strideA', 3)}" if "strideA" in a else f" {a['format']}"
            self.texts[a[first]] = text + kind

    def _compute(self, name: str, a: dict[str, Any]) -> None:
        """Do to the reserve, the generator and the gradient what cuDNN does."""
        assert a["workSpace"]
        assert a["workSpaceSizeInBytes"] == WORK
        states = self.states[a["rnnDesc"]]
        if name == "RNNForwardTrainingEx" and states:
            self.drawn.append(ctypes.c_ubyte.from_address(states).value)
            ctypes.memset(states, self.drawn[-1] + 1, STATES)
        if name in ORDER:
            assert a["reserveSpaceSizeInBytes"] == RESERVE
            reserve, state = (ctypes.c_char * RESERVE).from_address(a["reserveSpace"]), ORDER[name]
            assert state == 1 or reserve.raw == bytes([state - 1] * RESERVE), name
            reserve.raw = bytes([state] * RESERVE)
        if name == "RNNBackwardWeightsEx":
            dw = (ctypes.c_ubyte * self.params_bytes).from_address(a["dw"])
            dw[:] = [v + 1 for v in dw]
