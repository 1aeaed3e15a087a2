"""
ONNX's LSTM, GRU and RNN with all their attributes, plainly: one direction, step by step.

What no fast cell computes runs here, forward and backward, over NumPy and CuPy. `lstm`, `gru` and
`rnn` are a page of equations each, in the standard's names; `activations` has the eleven functions,
`layer` runs the steps, and `attributes` reads a node.
"""
