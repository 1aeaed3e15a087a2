"""docs/jax_recipe.py beside the same LSTM written in JAX."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import needs
import numpy as np
import pytest
from checks import assert_close

try:
    import jax
    import jax.numpy as jnp
except ImportError:
    jax = jnp = None

pytestmark = pytest.mark.skipif(jax is None, reason=needs.REASONS["jax"])

RECIPE = Path(__file__).parents[2] / "docs" / "jax_recipe.py"
T, B, I, H = 7, 3, 4, 5


@pytest.fixture(scope="module")
def recipe() -> Any:
    spec = importlib.util.spec_from_file_location("jax_recipe", RECIPE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def in_jax(x: Any, cs: Any, h: Any, w: Any, b: Any) -> Any:
    """block_lstm's equations, forget_bias 1 included."""

    def step(states: Any, x: Any) -> Any:
        cs, h = states
        i, ci, f, o = jnp.split(jnp.concatenate([x, h], 1) @ w + b, 4, 1)
        cs = jax.nn.sigmoid(i) * jnp.tanh(ci) + jax.nn.sigmoid(f + 1) * cs
        h = jax.nn.sigmoid(o) * jnp.tanh(cs)
        return (cs, h), h

    return jax.lax.scan(step, (cs, h), x)[1]


def arguments(dtype: str, seed: int, shape: tuple[int, int, int, int] = (T, B, I, H)) -> Any:
    (T, B, I, H), rng = shape, np.random.default_rng(seed)
    sizes = [(T, B, I), (B, H), (B, H), (I + H, 4 * H), (4 * H,)]
    scales = [1, 1, 1, 1 / np.sqrt(I + H), 1]
    return tuple(
        jnp.asarray((scale * rng.standard_normal(s)).astype(dtype))
        for s, scale in zip(sizes, scales, strict=True)
    )


def loss(function: Any) -> Any:
    return lambda *args: (jnp.cos(3 * function(*args)) ** 2).sum()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("jit", [False, True])
def test_first_and_second_derivatives(recipe: Any, dtype: str, jit: bool) -> None:
    every = tuple(range(5))
    wrap = jax.jit if jit else lambda function: function
    with jax.enable_x64(dtype == "float64"):
        args, v = arguments(dtype, 0), arguments(dtype, 1)
        found, expected = [], []
        for function, results in ((recipe.lstm, found), (in_jax, expected)):
            slope = wrap(jax.grad(loss(function), every))
            results += [wrap(function)(*args), *slope(*args)]
            results += jax.jvp(slope, args, v)[1]
            # Of the weights alone.
            one = wrap(jax.grad(lambda w, f=function: loss(f)(*args[:3], w, args[4])))
            results.append(jax.jvp(one, (args[3],), (v[3],))[1])
        for n, (a, e) in enumerate(zip(found, expected, strict=True)):
            assert a.dtype == dtype
            assert_close(np.asarray(a), np.asarray(e), dtype, str(n), at_least=1.0)


def test_hessian(recipe: Any) -> None:
    args = arguments("float32", 0, (3, 2, 2, 2))
    found, expected = (
        jax.hessian(lambda b, f=function: loss(f)(*args[:4], b))(args[4])
        for function in (recipe.lstm, in_jax)
    )
    assert_close(np.asarray(found), np.asarray(expected), "float32", "hessian", at_least=1.0)


def test_what_jax_does_not_allow(recipe: Any) -> None:
    args = arguments("float32", 0, (3, 2, 2, 2))
    with pytest.raises(TypeError, match=r"forward-mode .*custom_vjp"):
        jax.jvp(recipe.lstm, args, args)
    slope = jax.grad(lambda x: loss(recipe.lstm)(x, *args[1:]))
    with pytest.raises(Exception, match=r"Linearization|Pure callbacks do not support transpose"):
        jax.grad(lambda x: slope(x).sum())(args[0])


def test_vmap(recipe: Any) -> None:
    args = arguments("float32", 0)
    many = jnp.stack([args[3], 2 * args[3]])
    slopes = jax.vmap(jax.grad(lambda w: loss(recipe.lstm)(*args[:3], w, args[4])))(many)
    for w, found in zip(many, slopes, strict=True):
        expected = jax.grad(lambda w: loss(in_jax)(*args[:3], w, args[4]))(w)
        assert_close(np.asarray(found), np.asarray(expected), "float32", "vmap", at_least=1.0)


def test_large_arrays(recipe: Any) -> None:
    """A callback that waits for its arguments must not wait for itself."""
    args = arguments("float32", 0, (50, 16, 128, 128))
    slope = jax.jit(jax.grad(loss(recipe.lstm), 3))
    _, along = jax.jvp(lambda w: slope(*args[:3], w, args[4]), (args[3],), (args[3],))
    assert np.isfinite(np.asarray(along)).all()


def test_as_a_script() -> None:
    """Under sixty lines, and it runs as it stands."""
    assert len(RECIPE.read_text().splitlines()) < 60
    path = f"{RECIPE.parents[1]}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    command = [sys.executable, RECIPE]
    environment = os.environ | {"PYTHONPATH": path}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "Hessian times ones" in done.stdout
