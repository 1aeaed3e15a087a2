"""
A conformance kit of ONNX's LSTM, GRU and RNN: python -m cupyrnn.conformance.

`cases` draws nodes, `truth` computes their results in float64, `files` writes and reads them in the
layout of onnx's backend tests, `runtimes` runs them, `report` lists the attributes that a runtime
computes right. It needs the package onnx (extra `conformance`) and is not loaded by ``import
cupyrnn``.
"""
