"""Hessian-free training and Adam on the addition problem, for notebook 6 and its stored runs.

All parameters are one float32 or float64 vector `theta`: those of `cudnn_rnn`, packed, then the H
weights and the bias that make one number of the last state. A batch is (x, target).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

import cupyrnn

Array = np.ndarray
Batch = tuple[Array, Array]


class Work(NamedTuple):
    """Of how many sequences what was computed."""

    gradients: int = 0
    losses: int = 0
    products: int = 0  # with the Gauss-Newton matrix

    def more(self, gradients: int = 0, losses: int = 0, products: int = 0) -> Work:
        """Return the sum."""
        return Work(self.gradients + gradients, self.losses + losses, self.products + products)


Updates = Iterator[tuple[Array, Work]]  # theta after each, and the work so far


def addition(rng: np.random.Generator, T: int, B: int, dtype: Any = np.float32) -> Batch:
    """
    Return B sequences [T, B, 2] of the addition problem and their targets [B].

    At every step there is a number uniform in [0, 1] and a mark that is 0 but for two steps, one
    in the first and one in the second half; the target is the sum of the two marked numbers.
    """
    x = np.zeros((T, B, 2), dtype)
    x[..., 0] = rng.random((T, B))
    rows = np.arange(B)
    marked = rng.integers(0, T // 2, B), rng.integers(T // 2, T, B)
    for steps in marked:
        x[steps, rows, 1] = 1
    return x, sum(x[steps, rows, 0] for steps in marked)


def batches(rng: np.random.Generator, data: Batch, B: int) -> Iterator[Batch]:
    """Yield B sequences of the data at a time, for ever, in a new order in each epoch."""
    x, target = data
    while True:
        for rows in rng.permutation(len(target))[: len(target) // B * B].reshape(-1, B):
            yield x[:, rows], target[rows]


class Net(NamedTuple):
    """One recurrent layer and a linear output from its last state."""

    rnn_mode: str
    H: int

    def start(self, seed: int, dtype: Any = np.float32) -> Array:
        """Return the first parameters: Glorot, orthogonal recurrent matrices, no biases."""
        rng = np.random.default_rng(seed)
        packed = cupyrnn.init_params(
            num_layers=1, num_units=self.H, input_size=2, rnn_mode=self.rnn_mode, seed=rng
        )
        w = rng.normal(size=self.H) / np.sqrt(self.H)
        return np.concatenate([packed.params, w, [0]]).astype(dtype)

    def _first(self, theta: Array, x: Array) -> tuple[Any, ...]:
        zero = np.zeros((1, x.shape[1], self.H), theta.dtype)
        return x, zero, zero, theta[: -self.H - 1]

    def forward(self, theta: Array, x: Array) -> tuple[Array, Any]:
        """Return the prediction [B] and all that `cudnn_rnn` returned."""
        out = cupyrnn.cudnn_rnn(*self._first(theta, x), rnn_mode=self.rnn_mode)
        return out.output[-1] @ theta[-self.H - 1 : -1] + theta[-1], out

    def backward(
        self, theta: Array, x: Array, out: Any, y_grad: Array, h_grad: Any = None
    ) -> Array:
        """Return the gradient of theta from those of the prediction and of all states."""
        w = theta[-self.H - 1 : -1]
        grads = cupyrnn.cudnn_rnn_backprop(
            *self._first(theta, x),
            *out[:3],
            h_grad,
            (y_grad[:, None] * w)[None],
            None,
            out.reserve_space,
            host_reserved=out.host_reserved,
            rnn_mode=self.rnn_mode,
        )
        return np.concatenate(
            [grads.params_backprop, out.output[-1].T @ y_grad, y_grad.sum()[None]]
        )

    def loss(self, theta: Array, batch: Batch) -> float:
        """Return half the mean squared error."""
        y, _ = self.forward(theta, batch[0])
        return float(((y - batch[1]) ** 2).mean() / 2)

    def gradient(self, theta: Array, batch: Batch) -> Array:
        """Return the gradient of the loss."""
        x, target = batch
        y, out = self.forward(theta, x)
        return self.backward(theta, x, out, (y - target) / len(target))

    def hessian_product(self, theta: Array, batch: Batch, v: Array) -> Array:
        """Return H v, the derivative of the gradient along v."""
        return cupyrnn.jvp(lambda theta: self.gradient(theta, batch), (theta,), (v,))[1]


class GaussNewton:
    """
    The matrix A = (J'J + structural * S'S) / B + damping * 1 at theta, by its products.

    J is the derivative of the B predictions, S that of all states of all steps.
    """

    def __init__(
        self, net: Net, theta: Array, x: Array, damping: float = 0, structural: float = 0
    ) -> None:
        self.net, self.theta, self.x = net, theta, x
        self.damping, self.structural = damping, structural
        _, self.out = net.forward(theta, x)

    def states(self, theta: Array) -> tuple[Array, Array]:
        """Return what J and S are the derivatives of: predictions [B] and states [T, B, H]."""
        y, out = self.net.forward(theta, self.x)
        return y, out.output

    def product(self, v: Array) -> Array:
        """Return A v: forward along v, and the gradient of what comes out back."""
        B = self.x.shape[1]
        _, (Jv, Sv) = cupyrnn.jvp(self.states, (self.theta,), (v,))
        h_grad = self.structural / B * Sv if self.structural else None
        back = self.net.backward(self.theta, self.x, self.out, Jv / B, h_grad)
        return back + self.damping * v

    def diagonal(self, rng: np.random.Generator, samples: int) -> Array:
        """Return an estimate of A's diagonal: squared gradients of random signs."""
        B, total = self.x.shape[1], np.zeros(len(self.theta))
        for _ in range(samples):
            y_grad = rng.choice([-1, 1], B).astype(self.theta.dtype)
            h_grad = None
            if self.structural:
                signs = rng.choice([-1, 1], self.out.output.shape)
                h_grad = (self.structural**0.5 * signs).astype(self.theta.dtype)
            total += self.net.backward(self.theta, self.x, self.out, y_grad, h_grad) ** 2.0
        return total / (samples * B) + self.damping


class Steps(NamedTuple):
    """Some iterates of conjugate gradients, the last among them."""

    solutions: list[Array]
    model: float  # 1/2 p'Ap + g'p of the last
    iterations: int


def conjugate_gradients(
    product: Callable[[Array], Array], g: Array, p: Array, scale: Array, most: int
) -> Steps:
    """
    Minimize the model 1/2 p'Ap + g'p from p on, with product(p) = A p, preconditioned by scale.

    It stops when over the last k = max(10, a tenth of the iterations) the model fell by less than
    k * 0.0005 of its value, as in Martens (2010).
    """
    dtype = g.dtype
    r = product(p).astype(np.float64) + g
    p = p.astype(np.float64)
    z = r / scale
    direction, rz = -z, r @ z
    models, kept, keep_at = [p @ (r + g) / 2], [], 1.0
    for i in range(1, most + 1):
        along = product(direction.astype(dtype)).astype(np.float64)
        step = rz / (direction @ along)
        p = p + step * direction
        r = r + step * along
        z = r / scale
        rz, before = r @ z, rz
        direction = rz / before * direction - z
        models.append(p @ (r + g) / 2)
        k = max(10, i // 10)
        slow = i > k and models[i] < 0 and models[i] - models[i - k] > k * 5e-4 * models[i]
        if i >= keep_at or slow or i == most:
            kept.append(p.astype(dtype))
            keep_at *= 1.3
        if slow:
            break
    return Steps(kept, float(models[-1]), len(models) - 1)


def costs(net: Net, T: int, B: int, repeats: int = 20) -> tuple[float, float]:
    """Return the shortest times of a loss and of a product, divided by a gradient's."""
    theta, batch = net.start(0), addition(np.random.default_rng(0), T, B)
    A = GaussNewton(net, theta, batch[0], 1, 0.1)
    calls = (
        lambda: net.gradient(theta, batch),
        lambda: net.loss(theta, batch),
        lambda: A.product(theta),
    )
    took = np.empty((repeats, 3))
    for n, k in np.ndindex(took.shape):
        start = time.process_time()
        calls[k]()
        took[n, k] = time.process_time() - start
    gradient, loss, product = took.min(axis=0)
    return loss / gradient, product / gradient


class HessianFree(NamedTuple):
    """Hessian-free training's settings, and the method."""

    curvature: int = 250  # sequences that A is made of, the first ones of a batch
    structural: float = 0.1  # structural damping, times the damping
    damping: float = 1.0  # the first one
    most: int = 100  # iterations of conjugate gradients at an update
    decay: float = 0.95  # of the last solution, where they begin
    samples: int = 8  # backward passes for the preconditioner

    def updates(self, net: Net, theta: Array, data: Iterable[Batch], seed: int = 0) -> Updates:
        """Yield theta after each update."""
        rng = np.random.default_rng(seed)
        damping, work, p = self.damping, Work(), np.zeros_like(theta)
        for batch in data:
            N = len(batch[1])
            f, g = net.loss(theta, batch), net.gradient(theta, batch)
            x = batch[0][:, : self.curvature]
            A = GaussNewton(net, theta, x, damping, self.structural * damping)
            scale = A.diagonal(rng, self.samples) ** 0.75
            found = conjugate_gradients(A.product, g, self.decay * p, scale, self.most)

            # Back through the iterates, as long as that helps on the whole batch.
            last = net.loss(theta + found.solutions[-1], batch)
            best, step, losses = last, found.solutions[-1], 1
            for solution in found.solutions[-2::-1]:
                value = net.loss(theta + solution, batch)
                losses += 1
                if not value < best:
                    break
                best, step = value, solution

            # Then a line search, and none of it if nothing helps.
            rate, slope = 1.0, float(g @ step)
            while best > f + 0.01 * rate * slope and rate > 1e-4:
                rate *= 0.8
                best = net.loss(theta + np.asarray(rate * step, theta.dtype), batch)
                losses += 1
            p = found.solutions[-1]
            if best < f:
                theta = theta + np.asarray(rate * step, theta.dtype)
            else:
                p = np.zeros_like(p)

            # Levenberg and Marquardt: how much of what the model promised came true?
            ratio = (last - f) / found.model
            damping *= 1.5 if not ratio > 0.25 else 1 / 1.5 if ratio > 0.75 else 1
            # The estimate of the diagonal runs backward only: counted as gradients all the same.
            work = work.more(
                N + self.samples * x.shape[1],
                (losses + 1) * N + x.shape[1],
                (found.iterations + 1) * x.shape[1],
            )
            yield theta, work


class Adam(NamedTuple):
    """Adam's settings, and the method: its rate falls linearly, the gradient is clipped."""

    rate: float = 1e-3  # the first one
    steps: int = 10_000
    clip: float = 1.0
    decay: tuple[float, float] = (0.9, 0.999)

    def updates(self, net: Net, theta: Array, data: Iterable[Batch]) -> Updates:
        """Yield theta after each update."""
        (a, b), work = self.decay, Work()
        m, v = np.zeros_like(theta), np.zeros_like(theta)
        for k, batch in zip(range(1, self.steps + 1), data, strict=False):
            rate = self.rate * (1 - k / (self.steps + 1))
            g = net.gradient(theta, batch)
            g *= min(1.0, self.clip / float(np.linalg.norm(g)))
            m += (1 - a) * (g - m)
            v += (1 - b) * (g * g - v)
            theta = theta - rate / (1 - a**k) * m / (np.sqrt(v / (1 - b**k)) + 1e-8)
            work = work.more(gradients=len(batch[1]))
            yield theta, work


class Run(NamedTuple):
    """What became of a run."""

    rows: Array  # updates, gradients, losses, products, CPU seconds, mean squared error
    thetas: list[Array]  # of each row


def follow(net: Net, theta: Array, updates: Updates, test: Batch, seconds: float) -> Run:
    """
    Train to the end or for about some CPU seconds, and look at the test error on the way.

    The time that it takes to look is not counted.
    """
    rows, thetas, used = [], [], 0.0

    def look(k: int, theta: Array, work: Work) -> None:
        rows.append((k, *work, used, 2 * net.loss(theta, test)))
        thetas.append(theta)

    look(0, theta, Work())
    start = time.process_time()
    for k, (theta, work) in enumerate(updates, 1):
        used += time.process_time() - start
        if used >= seconds:
            break
        if used - rows[-1][-2] >= seconds / 100:
            look(k, theta, work)
        start = time.process_time()
    look(k, theta, work)
    return Run(np.array(rows), thetas)
