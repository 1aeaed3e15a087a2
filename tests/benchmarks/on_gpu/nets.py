"""cudnn_rnn and its gradient: this package's kernels, cuDNN through it, cuDNN through PyTorch."""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import numpy as np
from checks import assert_close

import cupyrnn

from . import problem
from .problem import PASSES, noise_of, numpy_dtype
from .pytorch import flatten, tensor
from .timing import Job, Run

CUPY_ENGINE, CUDNN_ENGINE, PYTORCH = "cupy", "cudnn", "PyTorch"
# What is timed; the shapes are those of `problem.SHAPES`.
NET_SHAPES = ("A", "B")
# (T, B, I, H) of what is checked.
CHECKED = [(1, 1, 1, 1), (7, 3, 33, 5), (40, 3, 5, 33)]
CELLS = ("lstm", "gru")


class Net(NamedTuple):
    """A net of L layers in D directions; with `lengths` its sequences are of different lengths."""

    cell: str
    L: int = 1
    D: int = 1
    lengths: bool = False

    def __str__(self) -> str:
        return f"L={self.L} D={self.D}{' lengths' if self.lengths else ''}"

    @property
    def direction(self) -> str:
        return "bidirectional" if self.D == 2 else "unidirectional"


def nets(cells: list[str]) -> list[Net]:
    """Return the nets that are timed, plain ones first."""
    every = itertools.product((1, 2), (1, 2), (False, True))
    return [Net(cell, L, D, lengths) for cell in cells for L, D, lengths in every]


def lengths_of(net: Net, shape: tuple[int, ...]) -> list[int] | None:
    """Return lengths from T down to half of it; as they descend, PyTorch need not sort."""
    T, B = shape[:2]
    if not net.lengths:
        return None
    return [T - round(T * b / (2 * B)) for b in range(B)]


def host_inputs(net: Net, shape: tuple[int, ...], seed: int) -> dict[str, Any]:
    """Return one set of inputs in float32, the gradient of output included."""
    T, B, I, H = shape
    rows = net.L * net.D
    kind: Any = {"rnn_mode": net.cell, "direction": net.direction}
    size = cupyrnn.cudnn_rnn_params_size(net.L, H, I, **kind)
    sizes: dict[str, tuple[int, ...]] = {"input": (T, B, I), "input_h": (rows, B, H)}
    if net.cell == "lstm":
        sizes["input_c"] = (rows, B, H)
    sizes |= {"params": (size,), "output_backprop": (T, B, net.D * H)}
    rng = np.random.default_rng(seed)
    return {
        name: noise_of(rng, wanted, (I + H) ** -0.5 if name == "params" else 0.7)
        for name, wanted in sizes.items()
    }


class Engine:
    """cudnn_rnn and cudnn_rnn_backprop on one set of inputs."""

    def __init__(self, net: Net, inputs: dict[str, Any], engine: Any) -> None:
        shape = inputs["input"].shape
        names = ("input", "input_h", "input_c", "params")
        self.inputs = [inputs.get(name) for name in names]
        self.cotangent = inputs["output_backprop"]
        self.attributes: dict[str, Any] = {"rnn_mode": net.cell, "direction": net.direction}
        self.attributes |= {"sequence_lengths": lengths_of(net, shape), "engine": engine}
        self.saved: Any = self.forward()

    def forward(self) -> Any:
        input, h, c, params = self.inputs
        return cupyrnn.cudnn_rnn(input, h, c, params, **self.attributes)

    def backward(self, saved: Any) -> Any:
        input, h, c, params = self.inputs
        return cupyrnn.cudnn_rnn_backprop(
            *(input, h, c, params, *saved[:3], self.cotangent, None, None, saved.reserve_space),
            host_reserved=saved.host_reserved,
            **self.attributes,
        )

    def run(self, what: str) -> Run:
        if what == "forward":
            return Run(lambda _: self.forward())
        if what == "backward":
            return Run(lambda _: self.backward(self.saved))
        return Run(lambda _: self.backward(self.forward()))


def engine_jobs(net: Net, sets: list[dict[str, Any]], engine: str) -> dict[str, Job]:
    contestants = [Engine(net, inputs, engine) for inputs in sets]
    return {what: Job([c.run(what) for c in contestants]) for what in PASSES}


def no_cudnn(cupy: Any) -> str | None:
    """Return why the package does not find cuDNN here, None if it does."""
    inputs = problem.on_device(cupy, host_inputs(Net("lstm"), (2, 2, 2, 2), 0), "float32")
    del inputs["output_backprop"]
    try:
        cupyrnn.cudnn_rnn_engine(**inputs, engine="cudnn")
    except RuntimeError as error:
        return str(error).removeprefix("cudnn_rnn_engine: engine is 'cudnn', but ")
    return None


class TorchNet:
    """torch.nn.LSTM, GRU or RNN with the numbers of one set of inputs."""

    def __init__(self, torch: Any, net: Net, inputs: dict[str, Any], mode: str) -> None:
        self.torch, dtype = torch, getattr(torch, numpy_dtype(mode).name)
        (T, B, I), H = inputs["input"].shape, inputs["input_h"].shape[2]
        options: dict[str, Any] = {"num_layers": net.L, "bidirectional": net.D == 2}
        options |= {"device": problem.TORCH_DEVICE, "dtype": dtype}
        if net.cell.startswith("rnn"):
            options["nonlinearity"] = net.cell.removeprefix("rnn_")
        kind = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU}.get(net.cell, torch.nn.RNN)
        self.module = kind(I, H, **options)
        state = cupyrnn.params_to_torch(
            *(np.asarray(inputs["params"]), net.L, H, I),
            rnn_mode=net.cell,  # type: ignore[arg-type]
            direction=net.direction,  # type: ignore[arg-type]
        )
        self.names = list(state)
        with torch.no_grad():
            for name, value in state.items():
                getattr(self.module, name).copy_(tensor(torch, value, dtype))
        self.note = flatten(torch, self.module)
        self.lengths = lengths_of(net, (T, B))
        self.x = tensor(torch, inputs["input"], dtype).requires_grad_()
        states = [inputs[name] for name in ("input_h", "input_c") if name in inputs]
        self.states = [tensor(torch, a, dtype).requires_grad_() for a in states]
        self.y_grad = tensor(torch, inputs["output_backprop"], dtype)
        self.wanted = [self.x, *self.states, *(getattr(self.module, n) for n in self.names)]

    def forward(self) -> Any:
        rnn = self.torch.nn.utils.rnn
        first = tuple(self.states) if len(self.states) > 1 else self.states[0]
        if self.lengths is None:
            return self.module(self.x, first)[0]
        output = self.module(rnn.pack_padded_sequence(self.x, self.lengths), first)[0]
        return rnn.pad_packed_sequence(output, total_length=len(self.x))[0]

    def backward(self, y: Any) -> Any:
        return self.torch.autograd.grad(y, self.wanted, self.y_grad)

    def run(self, what: str) -> Run:
        if what == "forward":
            return Run(lambda _: self.forward())
        if what == "backward":
            return Run(self.backward, self.forward)
        return Run(lambda _: self.backward(self.forward()))


def torch_jobs(contestants: list[TorchNet]) -> dict[str, Job]:
    return {what: Job([c.run(what) for c in contestants]) for what in PASSES}


def check_engine(cupy: Any, mode: str, net: Net, shape: tuple[int, ...], engine: str) -> None:
    """Compare with NumPy in float64 on the same rounded inputs."""
    tolerance = problem.TOLERANCE_OF[mode]
    device = problem.on_device(cupy, host_inputs(net, shape, 4), mode)
    wide = {name: cupy.asnumpy(a).astype(np.float64) for name, a in device.items()}
    ours, expected = Engine(net, device, engine), Engine(net, wide, "auto")
    for name in ("output", "output_h", "output_c"):
        a, e = getattr(ours.saved, name), getattr(expected.saved, name)
        assert_close(cupy.asnumpy(a), e, tolerance, name, at_least=1.0)
    grads, wide_grads = ours.backward(ours.saved), expected.backward(expected.saved)
    for name, a, e in zip(grads._fields, grads, wide_grads, strict=True):
        assert_close(cupy.asnumpy(a), e, tolerance, name, at_least=1.0)


def check_torch(torch: Any, mode: str, net: Net) -> None:
    """Compare PyTorch with NumPy in float64."""
    inputs = host_inputs(net, (9, 4, 16, 24), 5)
    theirs = TorchNet(torch, net, inputs, mode)
    rounded = {n: np.asarray(a.astype(numpy_dtype(mode)), np.float64) for n, a in inputs.items()}
    ours = Engine(net, rounded, "auto")

    def host(a: Any) -> Any:
        return a.detach().to(dtype=torch.float32).cpu().numpy()

    y = theirs.forward()
    problem.assert_peer(host(y), ours.saved.output, mode, "output")
    grads = ours.backward(ours.saved)
    expected = [grads.input_backprop, grads.input_h_backprop, grads.input_c_backprop]
    I = inputs["input"].shape[2]
    packed: Any = cupyrnn.params_to_torch(
        *(grads.params_backprop, net.L, inputs["input_h"].shape[2], I),
        rnn_mode=net.cell,  # type: ignore[arg-type]
        direction=net.direction,  # type: ignore[arg-type]
    )
    expected = [*expected[: 1 + len(theirs.states)], *(packed[name] for name in theirs.names)]
    what = ["input", "h", "c"][: 1 + len(theirs.states)] + theirs.names
    for name, a, e in zip(what, theirs.backward(y), expected, strict=True):
        problem.assert_peer(host(a), e, mode, f"gradient of {name}")
