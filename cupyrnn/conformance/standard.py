"""The sentences of the standard, operator set 22, that define the right results."""

from __future__ import annotations

from collections.abc import Iterable

_DTYPES = 'T: "tensor(bfloat16), tensor(float16), tensor(float), tensor(double)"'
_FUNCTIONS = '"The activation functions must be one of the activation functions specified above"'
_DEFAULTS = '"Default values are the same as of corresponding ONNX operators": '
# Sentences by the beginning of a feature. If a case has several features, the first here counts.
_SENTENCES = {
    "sequence_lens with a 0": "not specified; we return the initial states and Y = 0",
    "clip of C": ('"Ht = ot (.) h(Ct)", and clipping "is applied to the input of activations"'),
    "clip": (
        '"Clipping bounds the elements of a tensor in the range of [-threshold, +threshold] and is'
        ' applied to the input of activations"'
    ),
    "input_forget": '"Couple the input and forget gates if 1"',
    "linear_before_reset": (
        '"ht = g(Xt*(Wh^T) + (rt (.) (Ht-1*(Rh^T) + Rbh)) + Wbh) # when linear_before_reset != 0"'
    ),
    "sequence_lens": '"Optional tensor specifying lengths of the sequences in a batch"',
    "layout": (
        '"If 1, the following shapes are expected: X.shape = [batch_size, seq_length, input_size]"'
    ),
    "direction": '"Specify if the RNN is forward, reverse, or bidirectional"',
    "peepholes": '"it = f(Xt*(Wi^T) + Ht-1*(Ri^T) + Pi (.) Ct-1 + Wbi + Rbi)"',
    "initial_h": '"Optional initial value of the hidden"',
    "initial_c": '"Optional initial value of the cell"',
    "spelling": "nothing: we ignore case",
    "directions with": '"A list of 3 (or 6 if bidirectional) activation functions"',
    "HardSigmoid with": _DEFAULTS + "0.2 and 0.5",
    "LeakyRelu with": '"For example with LeakyRelu, the default alpha is 0.01"',
    "ThresholdedRelu with": _DEFAULTS + "1",
    "Elu with": _DEFAULTS + "1",
    **dict.fromkeys(("float16", "bfloat16", "float64"), _DTYPES),
    **dict.fromkeys(("activations", "f=", "g=", "h="), _FUNCTIONS),
    "no bias": '"Optional: If not specified - assumed to be 0"',
    "GRU": '"Ht = (1 - zt) (.) ht + zt (.) Ht-1", and the lines above it',
    "LSTM": '"Ct = ft (.) Ct-1 + it (.) ct", "Ht = ot (.) h(Ct)", and the lines above them',
    "RNN": '"Ht = f(Xt*(Wi^T) + Ht-1*(Ri^T) + Wbi + Rbi)"',
}


def decided_by(features: Iterable[str]) -> str:
    """Return the sentence that decides a case with these features."""
    features = list(features)
    for beginning, sentence in _SENTENCES.items():
        if any(feature.startswith(beginning) for feature in features):
            return sentence
    return "the equations"
