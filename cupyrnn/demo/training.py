"""The training: Adam, its history, and a first Ctrl-C that ends it in good order."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Iterator
from types import FrameType, ModuleType

import numpy as np

from .cells import Cell, Parameters
from .model import STREAMS, held_out_bits, loss_and_gradient, zero_state
from .modules import demo_module
from .output import show
from .text import Corpus, windows

MAX_RATE, MIN_RATE = 1e-2, 1e-4
WARM_UP = 20  # steps
MAX_NORM = 1.0
SMOOTHING = 0.9
MARKS = 5  # parts of the training after each of which the held-out text is scored


class Adam:
    """Adam with the gradient's norm bounded, the rate warmed up and then lowered by a cosine."""

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
        """Overwrite the parameters with better ones."""
        self.step += 1
        norm = sum(float((g * g).sum()) for g in grads.values()) ** 0.5
        scale = min(1.0, MAX_NORM / (norm + 1e-12))
        # The moments begin at zero; both corrections of that are in the rate.
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
    """Note a first Ctrl-C, so that no step is cut in half; a second one interrupts as ever."""
    interrupt = Interrupt()
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # as a shell has it for background jobs
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
    """Bits per character by step: of the training windows, smoothed too, and held out."""

    def __init__(self) -> None:
        self.training: list[float] = []
        self.smoothed: list[float] = []
        self.held_out: dict[int, float] = {}
        self._sum = self._weight = 0.0

    def add(self, bits: float) -> None:
        """Add a training step; its moving average has no bias to the first steps."""
        self._sum = SMOOTHING * self._sum + bits
        self._weight = SMOOTHING * self._weight + 1
        self.training.append(bits)
        self.smoothed.append(self._sum / self._weight)


def train(
    xp: ModuleType, cell: Cell, p: Parameters, corpus: Corpus, steps: int, B: int, T: int
) -> History:
    """Overwrite the parameters with trained ones; Ctrl-C ends it after the current step."""
    tqdm = demo_module("tqdm").tqdm
    history = History()
    adam, state = Adam(xp, p, steps), zero_state(xp, cell, p, B)
    marks = {round(steps * k / MARKS) for k in range(1, MARKS)}
    with (
        noting_interrupt() as interrupt,
        # disable=None: no bar where it would only fill a log; the lines at the marks remain.
        tqdm(
            total=steps,
            unit="step",
            disable=True if sys.stderr is None else None,
            dynamic_ncols=True,
        ) as bar,
    ):
        for step, (tokens, targets) in zip(
            range(1, steps + 1), windows(corpus.training, B, T), strict=False
        ):
            value, grads, state = loss_and_gradient(
                xp, cell, p, xp.asarray(tokens), xp.asarray(targets), state, seed=step
            )
            adam.update(p, grads)
            history.add(float(value) / float(np.log(2)))
            smoothed = history.smoothed[-1]
            bar.set_postfix_str(f"{smoothed:.3f} bits/char", refresh=False)
            bar.update()
            if interrupt.pressed:
                break
            if step in marks:
                held_out = history.held_out[step] = held_out_bits(xp, cell, p, corpus, STREAMS)
                with bar.external_write_mode():
                    show(f"  step {step:5d}   training {smoothed:.3f}   held out {held_out:.3f}")
    return history
