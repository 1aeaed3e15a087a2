"""
A conformance kit of ONNX's nodes and TensorFlow's ops: python -m cupyrnn.conformance.

`cases` draws nodes of LSTM, GRU and RNN, `truth` computes their results in float64, and `tf_ops`
does both for the ops. `files` writes and reads them, `runtimes` runs them, `report` counts by
feature what a runtime computes right. It needs the package onnx (extra `conformance`) and is not
loaded by ``import cupyrnn``.
"""
