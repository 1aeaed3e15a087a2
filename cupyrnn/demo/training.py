"""The training: Adam, the history, and Ctrl-C, which ends it after the current step."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Callable, Iterator
from types import FrameType, ModuleType
from typing import Any, NamedTuple

import numpy as np

from .._typing import Array
from ..parallel import Communicator, all_reduce_gradients, broadcast_parameters, check_parameters
from .cells import Parameters, State
from .model import STREAMS, Model, held_out_bits, loss_and_gradient, to_host
from .modules import demo_module
from .output import show
from .text import Corpus, window

MAX_RATE, MIN_RATE = 1e-2, 1e-4
WARM_UP = 20  # steps
MAX_NORM = 1.0
SMOOTHING = 0.9
MARKS = 5  # parts of the training; the held-out text is scored after each part


class Adam:
    """Adam with a bound on the gradient's norm, warm-up, and a cosine decay of the rate."""

    def __init__(self, xp: ModuleType, p: Parameters, steps: int) -> None:
        self.xp, self.steps, self.step = xp, steps, 0
        self.moments = {name: (xp.zeros_like(a), xp.zeros_like(a)) for name, a in p.items()}

    def rate(self) -> float:
        """Return the learning rate of the current step, which counts from 1."""
        cosine = (1 + np.cos(np.pi * self.step / self.steps)) / 2
        rate = MIN_RATE + (MAX_RATE - MIN_RATE) * cosine
        return float(rate * min(1, self.step / WARM_UP))

    def update(
        self, p: Parameters, grads: Parameters, beta1: float = 0.9, beta2: float = 0.99
    ) -> None:
        """Update the parameters in place."""
        self.step += 1
        norm = sum(float((g * g).sum()) for g in grads.values()) ** 0.5
        scale = min(1.0, MAX_NORM / (norm + 1e-12))
        # The rate includes both corrections for moments that begin at zero.
        rate = self.rate() * (1 - beta2**self.step) ** 0.5 / (1 - beta1**self.step)
        for name, g in grads.items():
            m, v = self.moments[name]
            g *= scale
            m += (1 - beta1) * (g - m)
            v += (1 - beta2) * (g * g - v)
            p[name] -= rate * m / (self.xp.sqrt(v) + 1e-8)


class Interrupt:
    """Whether Ctrl-C was pressed."""

    pressed = False


@contextlib.contextmanager
def noting_interrupt() -> Iterator[Interrupt]:
    """Record a first Ctrl-C, so that the current step ends; a second one interrupts it."""
    interrupt = Interrupt()
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # background jobs of a shell
        yield interrupt
        return

    def note(signum: int, frame: FrameType | None) -> None:
        interrupt.pressed = True
        signal.signal(signal.SIGINT, signal.default_int_handler)

    before = signal.signal(signal.SIGINT, note)
    try:
        yield interrupt
    finally:
        signal.signal(signal.SIGINT, before)


class History:
    """Bits per character by step: training windows, their moving average, held-out text."""

    def __init__(self) -> None:
        self.training: list[float] = []
        self.smoothed: list[float] = []
        self.held_out: dict[int, float] = {}
        self._sum = self._weight = 0.0

    def add(self, bits: float) -> None:
        """Add a training step; the moving average is not biased to the first steps."""
        self._sum = SMOOTHING * self._sum + bits
        self._weight = SMOOTHING * self._weight + 1
        self.training.append(bits)
        self.smoothed.append(self._sum / self._weight)


def part_of(n: int, comm: Communicator) -> slice:
    """Return the streams of this rank among n."""
    return slice(n * comm.rank // comm.size, n * (comm.rank + 1) // comm.size)


class TrainingPlan(NamedTuple):
    """The number of steps, and the size of the windows."""

    steps: int
    B: int
    T: int


class Training:
    """A model in training, with everything that the next step depends on.

    With several ranks, each has some of the B streams, and everything else is the same on all.
    """

    def __init__(
        self, comm: Communicator, model: Model, corpus: Corpus, plan: TrainingPlan
    ) -> None:
        self.comm, self.xp, self.corpus, self.plan = comm, model.xp, corpus, plan
        self.model = model._replace(p=broadcast_parameters(comm, model.p))
        self.adam = Adam(self.xp, self.model.p, plan.steps)
        self.streams = part_of(plan.B, comm)
        self.state = self.model.zero_state(self.streams.stop - self.streams.start)
        self.history = History()

    @property
    def done(self) -> int:
        """The number of finished steps."""
        return self.adam.step

    def step(self, stop: bool = False) -> bool:
        """Make one step; return whether any rank wants to stop."""
        window_ = window(self.corpus.training, self.plan.B, self.plan.T, self.done)
        tokens, targets = (self.xp.asarray(a[:, self.streams]) for a in window_)
        seed = self.done + 1 + self.plan.steps * self.comm.rank
        value, grads, self.state = loss_and_gradient(
            self.model, tokens, targets, self.state, seed=seed
        )
        if self.comm.size > 1:  # the loss and the wish to stop are reduced with the gradients
            grads["loss"] = self.xp.asarray(value)
            grads["stop"] = self.xp.asarray(stop, dtype=value.dtype)
            grads = all_reduce_gradients(self.comm, grads, weight=targets.size)
            value, stop = grads.pop("loss"), bool(grads.pop("stop") > 0)
        self.adam.update(self.model.p, grads)
        self.history.add(float(value) / float(np.log(2)))
        return stop

    def held_out_bits(self) -> float:
        """Return the bits per character of the held-out text, in many streams, by all ranks."""
        mine = part_of(STREAMS, self.comm)
        bits = held_out_bits(self.model, self.corpus, STREAMS, mine)
        share = {"bits": self.xp.asarray([bits], np.float64)}
        mean = all_reduce_gradients(self.comm, share, weight=mine.stop - mine.start)
        return float(mean["bits"][0])

    def arrays(self) -> dict[str, Array]:
        """Return the arrays of the training on the host; history and arrays are its state."""
        named = {f"parameter {n}": a for n, a in self.model.p.items()}
        for n, (m, v) in self.adam.moments.items():
            named |= {f"first moment {n}": m, f"second moment {n}": v}
        if self.comm.size > 1:
            check_parameters(self.comm, named)
        named |= {f"state {k}": a for k, a in enumerate(self._whole_state())}
        return {n: to_host(self.xp, a) for n, a in named.items()}

    def _whole_state(self) -> State:
        """Return the states of all ranks' streams: each rank adds its own to zeros."""
        whole = self.model.zero_state(self.plan.B)
        for a, mine in zip(whole, self.state, strict=True):
            a[..., self.streams, :] = mine
        return all_reduce_gradients(self.comm, whole, reduce="sum")

    def resume(self, history: dict[str, Any], arrays: dict[str, Array]) -> None:
        """Restore a saved training."""
        device = {n: self.xp.asarray(a) for n, a in arrays.items()}
        for n in self.model.p:
            self.model.p[n] = device[f"parameter {n}"]
            self.adam.moments[n] = device[f"first moment {n}"], device[f"second moment {n}"]
        self.state = tuple(
            self.xp.ascontiguousarray(device[f"state {k}"][..., self.streams, :])
            for k in range(len(self.state))
        )
        self.history = History()
        for bits in history["training"]:
            self.history.add(bits)
        self.history.held_out = {int(step): bits for step, bits in history["held_out"]}
        self.adam.step = len(self.history.training)


def show_step(step: int, history: History, held_out: float) -> None:
    """Print the progress of a training."""
    training = f"{history.smoothed[-1]:.3f}" if history.smoothed else "-"
    show(f"  step {step:5d}   training {training}   held out {held_out:.3f}")


def train(training: Training, every: int = 0, save: Callable[[], None] = lambda: None) -> None:
    """Make the remaining steps; Ctrl-C ends the training after the current step.

    `save` is called every `every` steps (0 for never) and at the end.
    """
    tqdm = demo_module("tqdm").tqdm
    steps, stop = training.plan.steps, False
    marks = {round(steps * k / MARKS) for k in range(1, MARKS)}
    with (
        noting_interrupt() as interrupt,
        # disable=None: no bar in a log; the lines at the marks remain.
        tqdm(
            total=steps,
            initial=training.done,
            unit="step",
            disable=True if sys.stderr is None or training.comm.rank else None,
            dynamic_ncols=True,
        ) as bar,
    ):
        while training.done < steps and not stop:
            stop = training.step(interrupt.pressed)
            step, history = training.done, training.history
            smoothed = history.smoothed[-1]
            bar.set_postfix_str(f"{smoothed:.3f} bits/char", refresh=False)
            bar.update()
            if step in marks:
                check_parameters(training.comm, training.model.p)
                held_out = history.held_out[step] = training.held_out_bits()
                with bar.external_write_mode():
                    show_step(step, history, held_out)
            if training.comm.size == 1:
                stop = interrupt.pressed
            if every and (step % every == 0 or step == steps or stop):
                save()
