"""
Converters of weights from and to PyTorch, Keras, TensorFlow 1, ONNX and gates by name.

They convert arrays to arrays and import no framework. The other modules of this folder hold the
layout of the packed parameters and their initial values.
"""

from .._lazy import attach_stub


def _hint_for(name: str) -> str:
    """Return the end of the error for an unknown name: where to find it, or its new name."""
    start, _, form = name.partition("_from_" if "_from_" in name else "_to_")
    if start == "gradient":
        return f"; use params_to_{form}(packed._replace(params=gradient), gradient=True)"
    if start == "block_gru" and form in ("gates", "keras", "onnx", "tf1"):
        return f"; use params_{name.removeprefix('block_gru_')}"
    outside = ("PackedParams", "BlockLSTMParams", "BlockGRUParams", "PeepholeLSTMParams")
    known = name in outside or name.startswith(("init_", "cudnn_rnn_"))
    return f"; use cupyrnn.{name}" if known else ""


__all__, __dir__, __getattr__ = attach_stub(globals(), _hint_for)
