"""Train small PyTorch and Keras models and store them, for notebooks/04_bring_your_weights.ipynb.

    python -m pip install -e '.[oracle,notebooks]' keras
    python notebooks/data/make_framework_models.py

writes framework_models.npz beside this file. Each model is one recurrent net and one dense layer.
The dense layer maps the last state of each direction to the nine speakers of Japanese Vowels. Each
model is trained on the first half of every speaker's training utterances. The rest is left
for fine-tuning. `MODEL/weights/NAME` are the framework's own arrays by its own names;
`MODEL/logits_float32` and `…_float64` what the framework returns for the 370 test utterances, in
float32 and, with the same weights, in float64. The string `index` is JSON: `versions`, and for
every model how it was made and its accuracy in the framework.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["CUDA_VISIBLE_DEVICES"] = ""
os.environ["KERAS_BACKEND"] = "tensorflow"

sys.path.insert(0, str(Path(__file__).parents[1]))

import keras
import lab
import torch

PATH = Path(__file__).with_name("framework_models.npz")
MAX_BYTES = 400_000
EPOCHS, BATCH, RATE = 60, 15, 0.005
MODELS: dict[str, dict[str, Any]] = {
    "torch_lstm": {"rnn_mode": "lstm", "num_units": 16, "num_layers": 2, "bidirectional": True},
    "torch_gru": {"rnn_mode": "gru", "num_units": 24, "num_layers": 1, "bidirectional": False},
    "keras_lstm": {"rnn_mode": "lstm", "num_units": 24, "num_layers": 1, "bidirectional": True},
    "keras_gru": {"rnn_mode": "gru", "num_units": 32, "num_layers": 1, "bidirectional": False},
}


def load(part: str) -> tuple[Any, Any, Any]:
    """Return the utterances [N, T, 12], zero past their ends, their lengths and speakers."""
    utterances, speakers = lab.japanese_vowels(part)
    lengths = np.array([len(u) for u in utterances])
    return lab.pad(utterances).transpose(1, 0, 2), lengths, speakers


class TorchModel(torch.nn.Module):
    def __init__(self, rnn_mode: str, num_units: int, num_layers: int, bidirectional: bool) -> None:
        super().__init__()
        kind = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU}[rnn_mode]
        self.rnn = kind(12, num_units, num_layers, bidirectional=bidirectional)
        self.directions = 1 + bidirectional
        self.dense = torch.nn.Linear(self.directions * num_units, 9)

    def forward(self, x: Any, lengths: Any) -> Any:
        packed = torch.nn.utils.rnn.pack_padded_sequence(
            x, lengths, batch_first=True, enforce_sorted=False
        )
        _, state = self.rnn(packed)
        h = state[0] if isinstance(state, tuple) else state
        return self.dense(torch.cat(list(h[-self.directions :]), dim=1))


def train_torch(how: dict[str, Any], x: Any, lengths: Any, y: Any) -> TorchModel:
    torch.manual_seed(0)
    model = TorchModel(**how)
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
    x, lengths, y = torch.tensor(x, dtype=torch.float32), torch.tensor(lengths), torch.tensor(y)
    for _ in range(EPOCHS):
        for batch in torch.randperm(len(x)).split(BATCH):
            loss = torch.nn.functional.cross_entropy(model(x[batch], lengths[batch]), y[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return model


def keras_model(
    rnn_mode: str, num_units: int, num_layers: int, bidirectional: bool, dtype: str
) -> Any:
    layers = keras.layers
    kind = {"lstm": layers.LSTM, "gru": layers.GRU}[rnn_mode]
    rnn = kind(num_units, dtype=dtype)
    if bidirectional:
        rnn = layers.Bidirectional(rnn, dtype=dtype)
    masked = layers.Masking(dtype=dtype)
    dense = layers.Dense(9, dtype=dtype)
    return keras.Sequential([keras.Input((29, 12), dtype=dtype), masked, rnn, dense])


def main() -> None:
    x, lengths, y = load("train")
    test_x, test_lengths, test_y = load("test")
    half = np.arange(len(x)) % 30 < 15
    stored: dict[str, Any] = {}
    index: dict[str, Any] = {"versions": {"torch": torch.__version__, "keras": keras.__version__}}

    def store(name: str, weights: dict[str, Any], logits: dict[str, Any]) -> None:
        accuracy = float((logits["float32"].argmax(1) == test_y).mean())
        index[name] = MODELS[name] | {"accuracy": accuracy}
        stored.update({f"{name}/weights/{k}": a for k, a in weights.items()})
        stored.update({f"{name}/logits_{k}": a for k, a in logits.items()})
        print(f"{name}: accuracy {accuracy:.4f}")

    for name, how in MODELS.items():
        if name.startswith("torch"):
            model = train_torch(how, x[half], lengths[half], y[half])
            weights = {k: v.numpy().copy() for k, v in model.state_dict().items()}
            logits = {}
            for dtype in ("float32", "float64"):
                inputs = torch.tensor(test_x, dtype=getattr(torch, dtype))
                with torch.no_grad():
                    model = model.to(inputs.dtype)
                    logits[dtype] = model(inputs, torch.tensor(test_lengths)).numpy()
        else:
            keras.utils.set_random_seed(0)
            model = keras_model(**how, dtype="float32")
            loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
            model.compile(keras.optimizers.Adam(RATE), loss)
            model.fit(x[half], y[half], BATCH, EPOCHS, verbose=0)
            weights = {f"{n}": a for n, a in enumerate(model.get_weights())}
            wide = keras_model(**how, dtype="float64")
            wide.set_weights(model.get_weights())
            both = {"float32": model, "float64": wide}
            logits = {d: np.asarray(m(test_x.astype(d))) for d, m in both.items()}
        store(name, weights, logits)

    np.savez_compressed(PATH, index=np.array(json.dumps(index)), **stored)
    print(PATH.stat().st_size, "bytes")
    assert PATH.stat().st_size <= MAX_BYTES


if __name__ == "__main__":
    main()
