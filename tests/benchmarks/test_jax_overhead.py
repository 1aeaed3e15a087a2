"""jax_overhead.py: all sides compute the same numbers."""

from __future__ import annotations

import needs
import numpy as np


def test_calls() -> None:
    needs.module("jax")
    import jax_overhead

    T, B, I, H = 3, 2, 4, 4
    found = jax_overhead.contestants(T, B, I, H)
    expected, grads = (call() for call in found["lax.scan"])
    assert expected.shape == (T, B, H)
    for name, (call, *_) in found.items():
        if name != "a callback":
            np.testing.assert_allclose(call(), expected, rtol=1e-4, atol=1e-5, err_msg=name)
    for name in ("block_lstm", "cudnn_rnn"):
        of_one = found[name][1]()
        for a, e in zip(of_one[:3], grads[:3], strict=True):
            np.testing.assert_allclose(a, e, rtol=1e-4, atol=1e-5, err_msg=name)
        of_numpy = found[f"NumPy's {name}"][1]()
        slope = of_numpy.x_grad if name == "block_lstm" else of_numpy.input_backprop
        np.testing.assert_allclose(slope, grads[0], rtol=1e-4, atol=1e-5, err_msg=name)
    for a, e in zip(found["block_lstm"][1]()[3:], grads[3:], strict=True):
        np.testing.assert_allclose(a, e, rtol=1e-4, atol=1e-5)
    assert found["a callback"][0]().shape == (T, B, H)
