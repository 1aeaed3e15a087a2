"""
A conformance kit of ONNX's LSTM, GRU and RNN: python -m cupyrnn.conformance.

`cases` draws nodes, `truth` says in float64 what they return, `files` writes and reads them in the
layout of onnx's backend tests, `runtimes` runs them, `report` tells which attributes a runtime has
right. It needs the package onnx (extra `conformance`) and is not loaded by ``import cupyrnn``.
"""
