"""Where reserve_space has what: cupyrnn/driver/reserve.py."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import cupyrnn


@pytest.mark.parametrize("direction", ["unidirectional", "bidirectional"])
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_states_of_three_layers(direction: Any, dropout: float, rng: np.random.Generator) -> None:
    """Two layers keep their outputs, and two have a mask before them, each its own."""
    net = {"num_layers": 3, "num_units": 4, "input_size": 2, "direction": direction}
    packed = cupyrnn.init_params(**net, dtype="float64", seed=0)
    x, (h, c) = rng.standard_normal((7, 2, 2)), packed.zero_state(2)
    found = []
    for save in ("all", "states", 2):
        drops = {"dropout": dropout, "seed": 3, "save": save}
        outputs, pullback = cupyrnn.vjp(cupyrnn.cudnn_rnn, x, h, c, packed, **drops)
        found.append([outputs.output, *pullback(output_backprop=outputs.output)])
    for all_saved, *fewer in zip(*found, strict=True):
        for a in fewer:
            np.testing.assert_allclose(a, all_saved, rtol=1e-12, atol=1e-15)
