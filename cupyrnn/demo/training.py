"""Training with Adam, in one process or many, and its checkpoint."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from .._typing import Array
from ..checks import npz
from ..parallel import Communicator, all_reduce_gradients, broadcast_parameters, check_parameters
from .model import STREAMS, Model, Parameters, held_out_bits, loss, to_host
from .text import Corpus, window

MAX_RATE, MIN_RATE = 1e-2, 1e-4
WARM_UP = 20  # steps
MAX_NORM = 1.0
SMOOTHING = 0.9
MARKS = 5  # parts of the training; the held-out text is scored after each part


class Adam:
    """Adam with clipped gradients and a rate that is warmed up and then falls."""

    def __init__(self, xp: ModuleType, p: Parameters, steps: int) -> None:
        self.xp, self.steps, self.step = xp, steps, 0
        self.moments = {name: (xp.zeros_like(a), xp.zeros_like(a)) for name, a in p.items()}

    def rate(self) -> float:
        """Return the learning rate of this step."""
        cosine = (1 + np.cos(np.pi * self.step / self.steps)) / 2
        rate = MIN_RATE + (MAX_RATE - MIN_RATE) * cosine
        return float(rate * min(1, self.step / WARM_UP))

    def update(
        self, p: Parameters, grads: Parameters, beta1: float = 0.9, beta2: float = 0.99
    ) -> None:
        """Make one step; the gradients are overwritten."""
        self.step += 1
        norm = sum(float((g * g).sum()) for g in grads.values()) ** 0.5
        scale = min(1.0, MAX_NORM / (norm + 1e-12))
        # The correction of both moments is part of the rate.
        rate = self.rate() * (1 - beta2**self.step) ** 0.5 / (1 - beta1**self.step)
        for name, g in grads.items():
            m, v = self.moments[name]
            g *= scale
            m += (1 - beta1) * (g - m)
            v += (1 - beta2) * (g * g - v)
            p[name] -= rate * m / (self.xp.sqrt(v) + 1e-8)


@contextlib.contextmanager
def noting_interrupt() -> Iterator[list[int]]:
    """Note a Ctrl-C in a list, instead of raising it; a second one is raised."""
    pressed: list[int] = []

    def note(number: int, frame: Any) -> None:
        pressed.append(number)
        signal.signal(signal.SIGINT, signal.default_int_handler)

    before = signal.getsignal(signal.SIGINT)
    if before != signal.SIG_IGN:  # as in background jobs of a shell
        signal.signal(signal.SIGINT, note)
    try:
        yield pressed
    finally:
        signal.signal(signal.SIGINT, before)


class History:
    """The bits per character of every step, their moving average, and those of held-out text."""

    def __init__(self) -> None:
        self.training: list[float] = []
        self.smoothed: list[float] = []
        self.held_out: dict[int, float] = {}
        self._sum = self._weight = 0.0

    def add(self, bits: float) -> None:
        """Add a step."""
        self._sum = SMOOTHING * self._sum + bits
        self._weight = SMOOTHING * self._weight + 1
        self.training.append(bits)
        self.smoothed.append(self._sum / self._weight)


def part_of(n: int, comm: Communicator) -> slice:
    """Return this rank's part of n things."""
    return slice(n * comm.rank // comm.size, n * (comm.rank + 1) // comm.size)


class Training:
    """A model in training, with everything that the next step depends on.

    With several ranks, each has some of the B streams, and everything else is the same on all.
    """

    def __init__(
        self, comm: Communicator, model: Model, corpus: Corpus, steps: int, B: int, T: int
    ) -> None:
        self.comm, self.xp, self.corpus, self.B, self.T = comm, model.xp, corpus, B, T
        self.model = model._replace(p=broadcast_parameters(comm, model.p))
        self.adam = Adam(self.xp, self.model.p, steps)
        self.streams = part_of(B, comm)
        self.state = self.model.zero_state(self.streams.stop - self.streams.start)
        self.history = History()

    @property
    def done(self) -> int:
        """The number of finished steps."""
        return self.adam.step

    def step(self, stop: bool = False) -> bool:
        """Make one step; return whether any rank wants to stop."""
        window_ = window(self.corpus.training, self.B, self.T, self.done)
        tokens, targets = (self.xp.asarray(a[:, self.streams]) for a in window_)
        seed = self.done + 1 + self.adam.steps * self.comm.rank
        value, self.state, gradient = loss(self.model, tokens, targets, self.state, seed=seed)
        # The loss and the wish to stop are reduced with the gradients.
        grads = gradient() | {"loss": value.reshape(1), "stop": self.xp.full(1, stop, value.dtype)}
        grads = all_reduce_gradients(self.comm, grads, weight=targets.size)
        value, stop = float(grads.pop("loss")[0]), bool(grads.pop("stop")[0] > 0)
        self.adam.update(self.model.p, grads)
        self.history.add(value / float(np.log(2)))
        return stop

    def held_out_bits(self) -> float:
        """Return the bits per character of the held-out text, in many streams, by all ranks."""
        mine = part_of(STREAMS, self.comm)
        bits = held_out_bits(self.model, self.corpus, STREAMS, mine)
        share = {"bits": self.xp.asarray([bits], np.float64)}
        mean = all_reduce_gradients(self.comm, share, weight=mine.stop - mine.start)
        return float(mean["bits"][0])

    def arrays(self) -> dict[str, Array]:
        """Return the arrays of the training on the host, of the streams of all ranks."""
        named = {f"parameter {n}": a for n, a in self.model.p.items()}
        for n, (m, v) in self.adam.moments.items():
            named |= {f"first moment {n}": m, f"second moment {n}": v}
        check_parameters(self.comm, named)
        whole = self.model.zero_state(self.B)
        for a, mine in zip(whole, self.state, strict=True):
            a[..., self.streams, :] = mine
        whole = all_reduce_gradients(self.comm, whole, reduce="sum")
        named |= {f"state {k}": a for k, a in enumerate(whole)}
        return {n: to_host(self.xp, a) for n, a in named.items()}

    def save(self, path: Path, configuration: dict[str, Any]) -> None:
        """Write a checkpoint: a killed run leaves the whole one before it, or this one."""
        history, arrays = self.history, self.arrays()
        about = {"configuration": configuration, "training": history.training}
        about["held_out"] = list(history.held_out.items())
        if self.comm.rank:
            return
        part = path.with_name(f".{path.name}.part")
        with open(part, "wb") as file:
            np.savez(file, about=np.array(json.dumps(about)), **arrays)  # type: ignore[arg-type]
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)

    def load(self, path: Path, configuration: dict[str, Any]) -> str:
        """Continue from a checkpoint; return why that is not possible, or "" if it is."""
        like = self.arrays()
        content = None if self.comm.rank else _read(path, configuration, like)
        why, about, arrays = self.comm.share(content)
        if why:
            return str(why)
        device = {n: self.xp.asarray(a) for n, a in arrays.items()}
        for n in self.model.p:
            self.model.p[n] = device[f"parameter {n}"]
            self.adam.moments[n] = device[f"first moment {n}"], device[f"second moment {n}"]
        whole = [device[f"state {k}"] for k in range(len(self.state))]
        self.state = tuple(a[..., self.streams, :].copy() for a in whole)
        for bits in about["training"]:
            self.history.add(bits)
        self.history.held_out = dict(about["held_out"])
        self.adam.step = len(about["training"])
        return ""


def _read(
    path: Path, configuration: dict[str, Any], like: dict[str, Array]
) -> tuple[str, dict[str, Any], dict[str, Array]]:
    """Return why a file is of another run, or "", and what is in it."""
    try:
        with npz.stored(path) as archive:
            about = json.loads(npz.read_text(archive, "about", path.stat().st_size))
            for name, value in configuration.items():
                if (was := about["configuration"].get(name)) != value:
                    other = f"--{name} {was}, not {value}" if name != "text" else "another text"
                    return f"{str(path)!r} is the checkpoint of a run with {other}", {}, {}
            arrays = {name: npz.read_array(archive, name) for name in like}
        for name, a in arrays.items():
            of = like[name]
            if a.shape != of.shape or a.dtype != of.dtype or not np.isfinite(a).all():
                raise ValueError(f"{name} has another shape or dtype, or is not finite")
    except Exception as error:  # damaged zip files raise many types of errors
        return f"{str(path)!r} is damaged or no checkpoint: {error}", {}, {}
    return "", about, arrays


def show_step(step: int, history: History, held_out: float) -> None:
    """Print the progress of a training."""
    training = f"{history.smoothed[-1]:.3f}" if history.smoothed else "-"
    print(f"  step {step:5d}   training {training}   held out {held_out:.3f}", flush=True)


def train(training: Training, every: int = 0, save: Callable[[], None] = lambda: None) -> None:
    """Make the remaining steps; Ctrl-C ends the training after the current step.

    `save` is called every `every` steps (0 for never) and at the end.
    """
    from tqdm import tqdm

    steps, history, stop = training.adam.steps, training.history, False
    marks = {round(steps * k / MARKS) for k in range(1, MARKS)}
    quiet = True if sys.stderr is None or training.comm.rank else None  # None: no bar in a log
    bar = tqdm(total=steps, initial=training.done, unit="step", disable=quiet, dynamic_ncols=True)
    with noting_interrupt() as pressed, bar:
        while training.done < steps and not stop:
            stop = training.step(bool(pressed))
            step = training.done
            bar.set_postfix_str(f"{history.smoothed[-1]:.3f} bits/char", refresh=False)
            bar.update()
            if step in marks:
                check_parameters(training.comm, training.model.p)
                history.held_out[step] = training.held_out_bits()
                with bar.external_write_mode():
                    show_step(step, history, history.held_out[step])
            if training.comm.size == 1:
                stop = bool(pressed)
            if every and (step % every == 0 or step == steps or stop):
                save()
