"""The cuDNN engine: against a library that records its calls, the real one's host code, a GPU."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import importlib.util
import itertools
import json
import os
import re
import subprocess
import sys
import threading
import types
from collections.abc import Callable, Iterator
from ctypes import c_float, c_int, c_int32, c_size_t, c_uint32, c_uint64, c_void_p
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checks import Ops, assert_close, assert_gradients
from cuda_on_cpu import fake_cupy, runner
from test_cudnn_rnn import (
    BI,
    CASES,
    COTANGENTS,
    LINEAR,
    SKIP,
    UNI,
    Case,
    backward,
    case_id,
    cotangents_of,
    forward,
    params_size,
    problem,
)

import cupyrnn
from cupyrnn import _cudnn, _libcudnn
from cupyrnn.params import GATES, Net

NEEDS_CUDNN = "needs cuDNN: pip install 'cupyrnn[cudnn13]'"
DTYPES = ("float16", "bfloat16", "float32", "float64")

# It declares what the package calls as cuDNN's manual does, writes down the arguments, and does to
# memory what cuDNN does: fills the outputs but not the padding, adds to the gradient of the
# parameters, and refuses a reserve space that is not in the state that the call needs.
STUB = r"""
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <sstream>
#include <string>

struct Descriptor { std::string kind, text; int type = 0, T = 0, B = 0, V = 0, lengths[64] = {};
                    int dims[3] = {}; int sizes[4] = {}; size_t bytes = 0; };
typedef Descriptor* cudnnDropoutDescriptor_t;
typedef Descriptor* cudnnRNNDescriptor_t;
typedef Descriptor* cudnnRNNDataDescriptor_t;
typedef Descriptor* cudnnTensorDescriptor_t;
typedef void* cudnnHandle_t;
typedef void* cudaStream_t;
typedef int cudnnStatus_t;

static std::string calls, failing, message;
static int failure, alive;
static intptr_t handles;
enum { BAD_PARAM = 2000, EXECUTION_FAILED = 5000 };

static std::string shown(const Descriptor* d) { return d ? '"' + d->text + '"' : "null"; }
static std::string shown(double v) { std::ostringstream s; s << v; return s.str(); }
static std::string shown(const void* p) { return std::to_string((uintptr_t)p); }
static std::string shown(void* p) { return shown((const void*)p); }
static std::string shown(int v) { return std::to_string(v); }
static std::string shown(unsigned v) { return std::to_string(v); }
static std::string shown(size_t v) { return std::to_string(v); }
static std::string shown(unsigned long long v) { return std::to_string(v); }
static std::string rest(std::string names) { return ""; }
template <class A, class... More>
static std::string rest(std::string names, A a, More... more) {
    size_t end = names.find(' ');
    std::string next = end == std::string::npos ? "" : names.substr(end + 1);
    return (next.empty() && sizeof...(more) ? "TOO FEW NAMES" : "") + std::string(", \"")
        + names.substr(0, end) + "\": " + shown(a) + rest(next, more...);
}
template <class... A>
static int record(const char* name, const char* names, A... a) {
    calls += std::string(calls.empty() ? "" : ",\n") + "{\"call\": \"" + name + "\""
        + rest(names, a...) + "}";
    message = name == failing ? "  what \n was wrong " : "";
    return name == failing ? failure : 0;
}

extern "C" {
const char* stub_calls() { static std::string all; all = "[" + calls + "]"; return all.c_str(); }
void stub_reset() { calls.clear(); failing.clear(); }
void stub_fail(const char* name, int status) { failing = name; failure = status; }
int stub_alive() { return alive; }

size_t cudnnGetVersion() { return 91301; }
const char* cudnnGetErrorString(cudnnStatus_t status) { return "CUDNN_STATUS_OF_THE_STUB"; }
void cudnnGetLastErrorString(char* out, size_t size) { strncpy(out, message.c_str(), size); }

cudnnStatus_t cudnnCreate(cudnnHandle_t* handle) {
    *handle = (void*)(0x5EED00 + ++handles);
    return record("cudnnCreate", "handle", *handle);
}
cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) {
    return record("cudnnDestroy", "handle", handle);
}
cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
    return record("cudnnSetStream", "handle stream", handle, stream);
}

#define DESCRIPTOR(K) \
cudnnStatus_t cudnnCreate##K##Descriptor(cudnn##K##Descriptor_t* d) { \
    *d = new Descriptor; (*d)->kind = #K; alive++; return 0; } \
cudnnStatus_t cudnnDestroy##K##Descriptor(cudnn##K##Descriptor_t d) { \
    if (d->kind != #K) return BAD_PARAM; \
    delete d; alive--; return 0; }
DESCRIPTOR(Dropout)
DESCRIPTOR(RNN)
DESCRIPTOR(RNNData)
DESCRIPTOR(Tensor)

cudnnStatus_t cudnnDropoutGetStatesSize(cudnnHandle_t handle, size_t* size) {
    *size = 64;
    return record("cudnnDropoutGetStatesSize", "handle", handle);
}
cudnnStatus_t cudnnSetDropoutDescriptor(cudnnDropoutDescriptor_t d, cudnnHandle_t handle,
        float rate, void* states, size_t size, unsigned long long seed) {
    if (d->kind != "Dropout" || (states && size != 64)) return BAD_PARAM;
    d->text = "rate " + shown((double)rate) + (states ? " seeded" : "");
    if (states) memset(states, 1, size);
    return record("cudnnSetDropoutDescriptor", "handle rate states size seed", handle,
        (double)rate, states, size, seed);
}
cudnnStatus_t cudnnRestoreDropoutDescriptor(cudnnDropoutDescriptor_t d, cudnnHandle_t handle,
        float rate, void* states, size_t size, unsigned long long seed) {
    if (d->kind != "Dropout" || !states || size != 64) return BAD_PARAM;
    d->text = "rate " + shown((double)rate) + " restored";
    return record("cudnnRestoreDropoutDescriptor", "handle rate states size seed", handle,
        (double)rate, states, size, seed);
}
cudnnStatus_t cudnnSetRNNDescriptor_v8(cudnnRNNDescriptor_t d, int algo, int cellMode,
        int biasMode, int dirMode, int inputMode, int dataType, int mathPrec, int mathType,
        int32_t inputSize, int32_t hiddenSize, int32_t projSize, int32_t numLayers,
        cudnnDropoutDescriptor_t dropoutDesc, uint32_t auxFlags) {
    if (d->kind != "RNN" || dropoutDesc->kind != "Dropout") return BAD_PARAM;
    std::ostringstream s;
    s << "algo " << algo << " cell " << cellMode << " bias " << biasMode << " dir " << dirMode
      << " input " << inputMode << " data " << dataType << " prec " << mathPrec << " math "
      << mathType << " I " << inputSize << " H " << hiddenSize << " P " << projSize << " L "
      << numLayers << " dropout " << dropoutDesc->text << " flags " << auxFlags;
    d->text = s.str();
    size_t G = cellMode == 2 ? 4 : cellMode == 3 ? 3 : 1, D = 1 + dirMode, H = hiddenSize;
    size_t P = projSize, size = 0;
    for (int l = 0; l < numLayers; l++) {
        size_t K = l ? D * P : inputMode ? 0 : inputSize;
        size += D * (G * H * (K + P) + (P != H ? P * H : 0) + 2 * G * H);
    }
    int out = (1 + dirMode) * projSize;
    int sizes[] = {inputSize, out, projSize, hiddenSize};
    memcpy(d->sizes, sizes, sizeof sizes);
    d->bytes = size * (dataType == 0 ? 4 : dataType == 1 ? 8 : 2);
    return record("cudnnSetRNNDescriptor_v8", "rnn", d);
}
cudnnStatus_t cudnnSetRNNDataDescriptor(cudnnRNNDataDescriptor_t d, int dataType, int layout,
        int maxT, int B, int V, const int seqLengths[], void* paddingFill) {
    if (d->kind != "RNNData" || !paddingFill || B > 64) return BAD_PARAM;
    std::ostringstream s;
    s << "data " << dataType << " layout " << layout << " T " << maxT << " B " << B << " V " << V
      << " fill " << *(uint64_t*)paddingFill << " lengths";
    for (int b = 0; b < B; b++) s << " " << (d->lengths[b] = seqLengths[b]);
    d->text = s.str(); d->type = dataType; d->T = maxT; d->B = B; d->V = V;
    return record("cudnnSetRNNDataDescriptor", "data", d);
}
cudnnStatus_t cudnnSetTensorNdDescriptor(cudnnTensorDescriptor_t d, int dataType, int rank,
        const int dims[], const int strides[]) {
    if (d->kind != "Tensor" || rank != 3) return BAD_PARAM;
    std::ostringstream s;
    s << "data " << dataType << " dims";
    for (int i = 0; i < 3; i++) s << " " << (d->dims[i] = dims[i]);
    s << " strides";
    for (int i = 0; i < 3; i++) s << " " << strides[i];
    d->text = s.str(); d->type = dataType;
    return record("cudnnSetTensorNdDescriptor", "tensor", d);
}
cudnnStatus_t cudnnGetTensorNdDescriptor(cudnnTensorDescriptor_t d, int requested, int* dataType,
        int* rank, int dims[], int strides[]) {
    *dataType = d->type; *rank = 3;
    for (int i = 0; i < 3; i++) { dims[i] = d->dims[i]; strides[i] = 1; }
    return requested == 3 ? 0 : BAD_PARAM;
}
cudnnStatus_t cudnnGetRNNWeightSpaceSize(cudnnHandle_t handle, cudnnRNNDescriptor_t rnn,
        size_t* size) {
    *size = rnn->bytes;
    return record("cudnnGetRNNWeightSpaceSize", "handle rnn", handle, rnn);
}
static const size_t WORK = 40, RESERVE = 37;
cudnnStatus_t cudnnGetRNNTempSpaceSizes(cudnnHandle_t handle, cudnnRNNDescriptor_t rnn, int mode,
        cudnnRNNDataDescriptor_t x, size_t* work, size_t* reserve) {
    *work = WORK; *reserve = mode ? RESERVE : 0;
    return record("cudnnGetRNNTempSpaceSizes", "handle rnn mode xDesc", handle, rnn, mode, x);
}
cudnnStatus_t cudnnGetRNNWeightParams(cudnnHandle_t handle, cudnnRNNDescriptor_t rnn,
        int32_t pseudoLayer, size_t wSize, const void* w, int32_t matrix,
        cudnnTensorDescriptor_t mDesc, void** m, cudnnTensorDescriptor_t bDesc, void** b) {
    *m = (char*)w + 8; *b = nullptr;
    mDesc->dims[0] = 1; mDesc->dims[1] = 2; mDesc->dims[2] = 3;
    return record("cudnnGetRNNWeightParams", "handle rnn pseudoLayer wSize w matrix", handle, rnn,
        pseudoLayer, wSize, w, matrix);
}

static void put(int type, void* a, size_t i, double v, bool add = false) {
    if (type == 0) ((float*)a)[i] = add ? ((float*)a)[i] + v : v;
    else if (type == 1) ((double*)a)[i] = add ? ((double*)a)[i] + v : v;
    else {  // only zero can be added to
        uint16_t one = type == 2 ? 0x3C00 : 0x3F80, *to = (uint16_t*)a + i;
        *to = add && *to ? 0xFFFF : v == 1 ? one : v == 2 ? 0x4000 : 0xFFFF;
    }
}
static void sequences(Descriptor* d, void* a) {
    for (int t = 0; t < d->T; t++) for (int b = 0; b < d->B; b++)
        for (int v = 0; v < d->V && t < d->lengths[b]; v++)
            put(d->type, a, ((size_t)t * d->B + b) * d->V + v, 1);
}
static void states(Descriptor* d, Descriptor* x, void* a) {
    for (int r = 0; r < d->dims[0]; r++) for (int b = 0; b < d->dims[1]; b++)
        for (int v = 0; v < d->dims[2] && a; v++)
            put(d->type, a, ((size_t)r * d->dims[1] + b) * d->dims[2] + v,
                x->lengths[b] ? 2 : 0.0 / 0.0);
}
static bool all(const void* a, size_t n, int v) {
    for (size_t i = 0; i < n; i++) if (((const unsigned char*)a)[i] != v) return false;
    return true;
}
static std::string read(const int32_t* lengths, Descriptor* d) {
    std::string s;
    for (int b = 0; lengths && b < d->B; b++) s += (b ? " " : "") + std::to_string(lengths[b]);
    return s;
}
#define CHECKED(reserve) \
    Descriptor dev, *on_device = &dev; \
    if (xDesc->kind != "RNNData" || yDesc->kind != "RNNData" || hDesc->kind != "Tensor" \
        || xDesc->V != rnn->sizes[0] || yDesc->V != rnn->sizes[1] \
        || hDesc->dims[2] != rnn->sizes[2] || wSize != rnn->bytes || workSize < WORK \
        || resSize != (reserve)) return BAD_PARAM; \
    dev.text = read(devSeqLengths, xDesc);

cudnnStatus_t cudnnRNNForward(cudnnHandle_t handle, cudnnRNNDescriptor_t rnn, int mode,
        const int32_t devSeqLengths[], cudnnRNNDataDescriptor_t xDesc, const void* x,
        cudnnRNNDataDescriptor_t yDesc, void* y, cudnnTensorDescriptor_t hDesc, const void* hx,
        void* hy, cudnnTensorDescriptor_t cDesc, const void* cx, void* cy, size_t wSize,
        const void* w, size_t workSize, void* work, size_t resSize, void* res) {
    CHECKED(mode ? RESERVE : 0)
    if (cDesc && cDesc->dims[2] != rnn->sizes[3]) return BAD_PARAM;
    sequences(yDesc, y); states(hDesc, xDesc, hy);
    if (cDesc) states(cDesc, xDesc, cy);
    memset(work, 9, workSize);
    if (mode) memset(res, 1, resSize);
    return record("cudnnRNNForward", "handle rnn mode lengths xDesc x yDesc y hDesc hx hy cDesc cx"
        " cy w work res", handle, rnn, mode, on_device, xDesc, x, yDesc, y, hDesc, hx, hy, cDesc,
        cx, cy, w, work, res);
}
cudnnStatus_t cudnnRNNBackwardData_v8(cudnnHandle_t handle, cudnnRNNDescriptor_t rnn,
        const int32_t devSeqLengths[], cudnnRNNDataDescriptor_t yDesc, const void* y,
        const void* dy, cudnnRNNDataDescriptor_t xDesc, void* dx, cudnnTensorDescriptor_t hDesc,
        const void* hx, const void* dhy, void* dhx, cudnnTensorDescriptor_t cDesc, const void* cx,
        const void* dcy, void* dcx, size_t wSize, const void* w, size_t workSize, void* work,
        size_t resSize, void* res) {
    CHECKED(RESERVE)
    if (!all(res, resSize, 1)) return EXECUTION_FAILED;
    if (cDesc && cDesc->dims[2] != rnn->sizes[3]) return BAD_PARAM;
    memset(res, 2, resSize);
    sequences(xDesc, dx); states(hDesc, xDesc, dhx);
    if (cDesc) states(cDesc, xDesc, dcx);
    return record("cudnnRNNBackwardData_v8", "handle rnn lengths yDesc y dy xDesc dx hDesc hx dhy"
        " dhx cDesc cx dcy dcx w work res", handle, rnn, on_device, yDesc, y, dy, xDesc, dx, hDesc,
        hx, dhy, dhx, cDesc, cx, dcy, dcx, w, work, res);
}
cudnnStatus_t cudnnRNNBackwardWeights_v8(cudnnHandle_t handle, cudnnRNNDescriptor_t rnn,
        int addGrad, const int32_t devSeqLengths[], cudnnRNNDataDescriptor_t xDesc, const void* x,
        cudnnTensorDescriptor_t hDesc, const void* hx, cudnnRNNDataDescriptor_t yDesc,
        const void* y, size_t wSize, void* dw, size_t workSize, void* work, size_t resSize,
        void* res) {
    CHECKED(RESERVE)
    if (!all(res, resSize, 2)) return EXECUTION_FAILED;
    memset(res, 3, resSize);
    int size = xDesc->type == 0 ? 4 : xDesc->type == 1 ? 8 : 2;
    for (size_t i = 0; i < wSize / size; i++) put(xDesc->type, dw, i, 1, true);
    return record("cudnnRNNBackwardWeights_v8", "handle rnn addGrad lengths xDesc x hDesc hx yDesc"
        " y dw work res", handle, rnn, addGrad, on_device, xDesc, x, hDesc, hx, yDesc, y, dw, work,
        res);
}
}
"""

# cuDNN 8 where a part is missing: the first call ends the process.
EIGHT = 'extern "C" { unsigned long cudnnGetVersion() { __builtin_trap(); } }'


@functools.cache
def compiled(source: str) -> bytes:
    """Return a shared library."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "lib.so"
        command = ["g++", "-std=c++17", "-O1", "-w", "-shared", "-fPIC", "-x", "c++", "-"]
        subprocess.run([*command, "-o", str(out)], input=source, text=True, check=True)
        return out.read_bytes()


def install(folder: Path, source: str = STUB, parts: tuple[str, ...] | None = None) -> Path:
    """Write a library as libcudnn.so.9 and, as its parts, libraries beside it."""
    reason = runner.have_gxx()
    if reason is not None:
        pytest.skip(reason)
    folder.mkdir(exist_ok=True, parents=True)
    path = folder / "libcudnn.so.9"
    path.write_bytes(compiled(source))
    for part in _libcudnn._SUBLIBRARIES if parts is None else parts:
        (folder / part).write_bytes(compiled(f"int {part.split('.')[0]};"))
    return path


@pytest.fixture(autouse=True)
def fresh_search(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Look for the libraries anew, with no settings of the user's."""
    monkeypatch.delenv("CUPYRNN_CUDNN", raising=False)
    monkeypatch.delenv("CUPYRNN_ENGINE", raising=False)
    monkeypatch.delenv("CUPY_TF32", raising=False)
    for cached in (_libcudnn._attempt, _cudnn._legacy, _cudnn._legacy_handles):
        cached.cache_clear()
    yield
    for cached in (_libcudnn._attempt, _cudnn._legacy, _cudnn._legacy_handles):
        cached.cache_clear()


class Stub:
    """The library that records, loaded."""

    def __init__(self, path: Path) -> None:
        self.dll = ctypes.CDLL(str(path))
        self.dll.stub_calls.restype = ctypes.c_char_p

    def calls(self) -> list[dict[str, Any]]:
        return json.loads(self.dll.stub_calls())

    def names(self) -> list[str]:
        return [c["call"] for c in self.calls()]

    def last(self, name: str) -> dict[str, Any]:
        """Return the arguments of the last call of a function."""
        found = [c for c in self.calls() if c["call"] == name]
        assert found, f"{name} was not called"
        return {n: v for n, v in found[-1].items() if n != "call"}


def with_streams(cupy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the stand-in for CuPy what this engine needs of CuPy beside arrays."""

    def copyto(to: Any, source: Any, *, where: Any) -> None:
        assert all(type(a) is cupy.ndarray for a in (to, source, where))
        np.copyto(fake_cupy.get(to), fake_cupy.get(source), where=fake_cupy.get(where))

    stream = types.SimpleNamespace(ptr=0x57)
    monkeypatch.setattr(cupy, "copyto", copyto, raising=False)
    monkeypatch.setattr(cupy.cuda, "get_current_stream", lambda: stream, raising=False)
    monkeypatch.setattr(cupy.cuda, "get_device_id", fake_cupy._current, raising=False)


@pytest.fixture
def stub(cupy_on_cpu: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Stub]:
    """The library that records is cuDNN, beside the stand-in for CuPy."""
    with_streams(cupy_on_cpu, monkeypatch)
    path = install(tmp_path / "cudnn")
    monkeypatch.setenv("CUPYRNN_CUDNN", str(path))
    loaded = Stub(path)
    yield loaded
    assert loaded.dll.stub_alive() == 0, "descriptors were left"


def config_of(case: Case, **more: Any) -> Net:
    fields = {"dropout": 0.0, "seed": 0, "seed2": 0, "is_training": True} | more
    sizes = (case.L, case.H, case.I, case.D, case.num_proj, case.T, case.B)
    return Net(case.rnn_mode, case.skip, *sizes, **fields)


def lengths_of(case: Case) -> Any:
    return None if case.lengths is None else np.array(case.lengths, np.int32)


def dtype_of(name: str) -> Any:
    return np.dtype(pytest.importorskip("ml_dtypes").bfloat16 if name == "bfloat16" else name)


def given(cupy: Any, case: Case, dtype: str) -> dict[str, Any]:
    """Return the arguments of `_cudnn.forward` for a case."""
    inputs = problem(np.random.default_rng(0), case, dtype_of(dtype))
    arrays = {n: cupy.asarray(a) for n, a in inputs.items()}
    names = ("input", "input_h", "input_c", "params")
    return {n: arrays.get(n) for n in names} | {"lengths": lengths_of(case)}


# The numbers of the manual once more, so that a wrong one in the package does not agree.
CELLS = {"rnn_relu": 0, "rnn_tanh": 1, "lstm": 2, "gru": 3}
TYPES = {"float32": (0, 0, 3), "float64": (1, 1, 0), "float16": (2, 0, 1), "bfloat16": (9, 0, 1)}


def rnn_text(case: Case, dtype: str, dropout: str = "rate 0") -> str:
    data, precision, math = TYPES[dtype]
    return (
        f"algo 0 cell {CELLS[case.rnn_mode]} bias 2 dir {case.D - 1} input {int(case.skip)}"
        f" data {data} prec {precision} math {math} I {case.I} H {case.H} P {case.P} L {case.L}"
        f" dropout {dropout} flags 1"
    )


def data_text(case: Case, dtype: str, V: int) -> str:
    lengths = " ".join(map(str, case.lengths or (case.T,) * case.B))
    return f"data {TYPES[dtype][0]} layout 0 T {case.T} B {case.B} V {V} fill 0 lengths {lengths}"


def tensor_text(case: Case, dtype: str, columns: int) -> str:
    B, type = case.B, TYPES[dtype][0]
    return f"data {type} dims {case.L * case.D} {B} {columns} strides {B * columns} {columns} 1"


def pointer(a: Any) -> int:
    return 0 if a is None else a.data.ptr


def filled(cupy: Any, case: Case, states: bool, source: Any) -> Any:
    """Return what the stub's outputs are for sequences (1), or for states (2), in float64."""
    lengths = np.array(case.lengths or (case.T,) * case.B)
    host = cupy.asnumpy(source).astype(np.float64)
    if states:
        return np.where((lengths == 0)[:, None], host, 2.0)
    return (np.arange(case.T)[:, None] < lengths)[:, :, None] * np.ones(host.shape[2])


each_dtype = pytest.mark.parametrize("dtype", DTYPES)
# cuDNN takes a projection to H for none, and has no matrix for it then.
CUDNN_CASES = [c._replace(num_proj=2) if c.num_proj == c.H else c for c in CASES]
each_case = pytest.mark.parametrize("case", CUDNN_CASES, ids=case_id)


@pytest.mark.cuda_on_cpu
@each_dtype
@each_case
def test_every_argument_of_both_passes(
    cupy_on_cpu: Any, stub: Stub, case: Case, dtype: str
) -> None:
    cupy, config, rng = cupy_on_cpu, config_of(case), np.random.default_rng(0)
    args = given(cupy, case, dtype)
    lengths = "" if case.lengths is None else " ".join(map(str, case.lengths))
    is_lstm = case.rnn_mode == "lstm"
    assert _cudnn.why_not(config, dtype, args["lengths"]) is None
    output, output_h, output_c, reserve = _cudnn.forward(config, **args)
    shared = {
        "handle": stub.last("cudnnSetStream")["handle"],
        "rnn": rnn_text(case, dtype),
        "lengths": lengths,
        "xDesc": data_text(case, dtype, case.I),
        "yDesc": data_text(case, dtype, case.D * case.P),
        "hDesc": tensor_text(case, dtype, case.P),
        "cDesc": tensor_text(case, dtype, case.H) if is_lstm else None,
        "x": pointer(args["input"]),
        "hx": pointer(args["input_h"]),
        "cx": pointer(args["input_c"]),
        "w": pointer(args["params"]),
        "y": pointer(output),
    }
    called = stub.last("cudnnRNNForward")
    new = {"hy": pointer(output_h), "cy": pointer(output_c), "res": pointer(reserve)}
    assert called == shared | new | {"mode": 1, "work": called["work"]}
    assert reserve.shape == (-(-37 // dtype_of(dtype).itemsize),)
    assert reserve.size == _cudnn.reserve_size(config, dtype, args["lengths"])
    wide = functools.partial(np.asarray, dtype=np.float64)
    for a, states, source in (
        (output, False, output),
        (output_h, True, args["input_h"]),
        (output_c, True, args["input_c"]),
    ):
        if a is not None:
            assert type(a) is cupy.ndarray
            np.testing.assert_array_equal(wide(cupy.asnumpy(a)), filled(cupy, case, states, source))

    cotangents = cotangents_of(rng, case, dtype_of(dtype))
    dy, dhy, dcy = (cupy.asarray(cotangents[n]) if n in cotangents else None for n in COTANGENTS)
    before = reserve.tobytes()
    for attempt in range(2):
        grads = _cudnn.backward(
            config,
            **args,
            output=output,
            output_backprop=dy,
            output_h_backprop=dhy,
            output_c_backprop=dcy,
            reserve=reserve,
        )
        assert reserve.tobytes() == before, f"the reserve changed in call {attempt}"
        dx, dhx, dcx, dw = grads
        called = stub.last("cudnnRNNBackwardData_v8")
        new = {"dx": pointer(dx), "dhx": pointer(dhx), "dcx": pointer(dcx)}
        new |= {"dy": pointer(dy), "dhy": pointer(dhy), "dcy": pointer(dcy)}
        own = {n: called[n] for n in ("work", "res")}
        used = {n: v for n, v in shared.items() if n != "x"}
        assert called == used | new | own
        assert own["res"] != pointer(reserve)
        called = stub.last("cudnnRNNBackwardWeights_v8")
        used = {
            n: shared[n]
            for n in ["handle", "rnn", "lengths", "xDesc", "x", "hDesc", "hx", "yDesc", "y"]
        }
        assert called == used | own | {"addGrad": 0, "dw": pointer(dw)}
        np.testing.assert_array_equal(wide(cupy.asnumpy(dw)), np.ones(params_size(case)))
        for a, states, source in ((dx, False, dx), (dhx, True, dhy), (dcx, True, dcy)):
            if a is not None:
                expected = filled(cupy, case, states, source)
                np.testing.assert_array_equal(wide(cupy.asnumpy(a)), expected)
    names = stub.names()
    assert names[0] == "cudnnCreate"
    assert names.count("cudnnCreate") == 1
    assert names[1] == "cudnnSetStream"
    assert stub.last("cudnnSetStream")["stream"] == 0x57


@pytest.mark.cuda_on_cpu
def test_gradients_that_are_not_given_are_zeros(cupy_on_cpu: Any, stub: Stub) -> None:
    case = Case("lstm", 3, 2, 4, 5)
    config, args = config_of(case), given(cupy_on_cpu, case, "float64")
    output, _, _, reserve = _cudnn.forward(config, **args)
    seen: list[Any] = []
    zeros = cupy_on_cpu.zeros

    def remember(*args: Any) -> Any:
        seen.append(zeros(*args))
        return seen[-1]

    cupy_on_cpu.zeros = remember
    _cudnn.backward(
        config,
        **args,
        output=output,
        output_backprop=None,
        output_h_backprop=None,
        output_c_backprop=None,
        reserve=reserve,
    )
    called = stub.last("cudnnRNNBackwardData_v8")
    at = {pointer(a): a.shape for a in seen}
    assert [at[called[n]] for n in ("dy", "dhy", "dcy")] == [(3, 2, 5), (1, 2, 5), (1, 2, 5)]


@pytest.mark.cuda_on_cpu
def test_inference_has_no_reserve(cupy_on_cpu: Any, stub: Stub) -> None:
    case = Case("gru", 3, 2, 4, 5, 2, BI)
    config = config_of(case, is_training=False, dropout=0.5)
    *_, reserve = _cudnn.forward(config, **given(cupy_on_cpu, case, "float32"))
    called = stub.last("cudnnRNNForward")
    assert (called["mode"], called["res"], reserve.shape) == (0, 0, (0,))
    assert called["rnn"] == rnn_text(case, "float32")
    assert stub.last("cudnnGetRNNTempSpaceSizes")["mode"] == 0
    training = config._replace(is_training=True)
    assert _cudnn.reserve_size(config, "float32", None) == _cudnn.reserve_size(
        training, "float32", None
    )


@pytest.mark.cuda_on_cpu
@pytest.mark.parametrize(
    ("seed", "seed2", "expected"),
    [
        (0, 0, 0),
        (3, 5, 3 * 2**32 + 5),
        (-1, 2, 2**64 - 2**32 + 2),
        (2**40, 7, 2**40 * 2**32 % 2**64 + 7),
    ],
)
def test_the_seed_of_the_mask(
    cupy_on_cpu: Any, stub: Stub, seed: int, seed2: int, expected: int
) -> None:
    """The generator starts anew in every forward call and is not asked in a backward call."""
    case = Case("lstm", 3, 2, 4, 5, 2)
    config = config_of(case, seed=seed, seed2=seed2, dropout=0.25)
    args = given(cupy_on_cpu, case, "float32")
    for _ in range(2):
        stub.dll.stub_reset()
        output, _, _, reserve = _cudnn.forward(config, **args)
        called = stub.last("cudnnSetDropoutDescriptor")
        assert (called["rate"], called["size"], called["seed"]) == (0.25, 64, expected)
        assert called["states"]
        text = rnn_text(case, "float32", "rate 0.25 seeded")
        assert stub.last("cudnnRNNForward")["rnn"] == text
    stub.dll.stub_reset()
    _cudnn.backward(
        config,
        **args,
        output=output,
        output_backprop=output,
        output_h_backprop=None,
        output_c_backprop=None,
        reserve=reserve,
    )
    assert "cudnnSetDropoutDescriptor" not in stub.names()
    text = rnn_text(case, "float32", "rate 0.25 restored")
    for name in ("cudnnRNNBackwardData_v8", "cudnnRNNBackwardWeights_v8"):
        assert stub.last(name)["rnn"] == text


@pytest.mark.cuda_on_cpu
def test_one_layer_has_no_dropout(cupy_on_cpu: Any, stub: Stub) -> None:
    case = Case("lstm", 3, 2, 4, 5)
    _cudnn.forward(config_of(case, dropout=0.5), **given(cupy_on_cpu, case, "float32"))
    assert stub.last("cudnnRNNForward")["rnn"] == rnn_text(case, "float32")


@pytest.mark.cuda_on_cpu
def test_tf32_where_the_user_asks_for_it(
    cupy_on_cpu: Any, stub: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Case("lstm", 3, 2, 4, 5)
    for setting, math in (("0", 3), ("1", 0), ("2", 0), ("-1", 3)):
        monkeypatch.setenv("CUPY_TF32", setting)
        _cudnn.forward(config_of(case), **given(cupy_on_cpu, case, "float32"))
        assert f" math {math} " in stub.last("cudnnRNNForward")["rnn"]
        _cudnn.forward(config_of(case), **given(cupy_on_cpu, case, "float64"))
        assert " math 0 " in stub.last("cudnnRNNForward")["rnn"]


@pytest.mark.cuda_on_cpu
def test_the_public_functions_use_it(
    cupy_on_cpu: Any, stub: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Case("lstm", 3, 2, 4, 5, lengths=(2, 3))
    inputs, ops = problem(np.random.default_rng(0), case), Ops(cupy_on_cpu)
    arguments = {n: cupy_on_cpu.asarray(a) for n, a in inputs.items()} | case.attributes
    assert cupyrnn.cudnn_rnn_engine(**arguments) == "cudnn"
    out = forward(ops, case, inputs)
    grads = backward(ops, case, inputs, out, cotangents_of(np.random.default_rng(0), case))
    np.testing.assert_array_equal(out.output_h, np.full((1, 2, 5), 2.0))
    np.testing.assert_array_equal(grads.params_backprop, np.ones(params_size(case)))
    monkeypatch.setenv("CUPYRNN_ENGINE", "cupy")
    assert cupyrnn.cudnn_rnn_engine(**arguments) == "cupy"
    stub.dll.stub_fail(b"cudnnSetRNNDescriptor_v8", 3000)
    monkeypatch.delenv("CUPYRNN_ENGINE")
    assert cupyrnn.cudnn_rnn_engine(**arguments) == "cupy"
    message = "engine is 'cudnn', but cudnnSetRNNDescriptor_v8 of cuDNN 9.13.1 returned "
    with pytest.raises(RuntimeError, match=f"^cudnn_rnn: {re.escape(message)}"):
        forward(ops, case, inputs, engine="cudnn")
    own = forward(ops, case, inputs)
    cotangents = cotangents_of(np.random.default_rng(0), case)
    expected = backward(ops, case, inputs, own, cotangents)
    monkeypatch.setenv("CUPYRNN_ENGINE", "cudnn")
    with pytest.raises(
        RuntimeError, match=r"^cudnn_rnn: the environment variable CUPYRNN_ENGINE is 'cudnn', but "
    ):
        forward(ops, case, inputs)
    # What host_reserved says goes before the variable.
    again = backward(ops, case, inputs, own, cotangents)
    np.testing.assert_array_equal(again.params_backprop, expected.params_backprop)


@pytest.mark.cuda_on_cpu
def test_params_of_another_size_are_refused(cupy_on_cpu: Any, stub: Stub) -> None:
    case = Case("lstm", 3, 2, 4, 5)
    args = given(cupy_on_cpu, case, "float64")
    args["params"] = args["params"][:-1]
    with pytest.raises(RuntimeError, match=r"^cuDNN has 1760 bytes of params, not 1752$"):
        _cudnn.forward(config_of(case), **args)


@pytest.mark.cuda_on_cpu
def test_what_is_refused_and_why(stub: Stub) -> None:
    config = config_of(Case("lstm", 3, 2, 4, 5))

    def reason(**changed: Any) -> str | None:
        return _cudnn.why_not(config._replace(**changed), "float32", None)

    assert reason() is None
    for symbol in ("T", "B", "I", "H", "L"):
        assert reason(**{symbol: 0}) == f"cuDNN does not take {symbol} = 0"
    assert reason(num_proj=5) == "cuDNN takes num_proj = H = 5 for no projection at all"
    assert reason(num_proj=4) is None
    assert reason(T=65535) is None
    assert reason(T=65536) == "cuDNN does not take T = 65536, the most is 65535"
    assert reason(I=2**30) == "cuDNN does not take sizes beyond 32 bits"
    for name in (
        "cudnnCreateRNN",
        "cudnnSetStream",
        "cudnnSetRNNDescriptor_v8",
        "cudnnSetRNNDataDescriptor",
        "cudnnGetRNNTempSpaceSizes",
    ):
        stub.dll.stub_fail(name.encode(), 3000)
        expected = (
            f"{name} of cuDNN 9.13.1 returned CUDNN_STATUS_OF_THE_STUB (3000): what was wrong"
        )
        assert reason() == (None if name == "cudnnCreateRNN" else expected)
    stub.dll.stub_reset()
    assert reason() is None
    assert reason(rnn_mode="elman") == "KeyError: 'elman'"


@pytest.mark.cuda_on_cpu
def test_a_handle_for_each_thread_and_device(cupy_on_cpu: Any, stub: Stub) -> None:
    case = Case("lstm", 3, 2, 4, 5)

    def run(device: int) -> None:
        with cupy_on_cpu.cuda.Device(device):
            _cudnn.forward(config_of(case), **given(cupy_on_cpu, case, "float32"))

    for device in (0, 1, 0, 1):
        run(device)
    used = [c["handle"] for c in stub.calls() if c["call"] == "cudnnRNNForward"]
    assert len(set(used)) == 2
    assert used[:2] == used[2:]
    thread = threading.Thread(target=run, args=(1,))
    thread.start()
    thread.join()
    del thread
    gc.collect()
    other = stub.last("cudnnRNNForward")["handle"]
    assert other not in used
    destroyed = [c["handle"] for c in stub.calls() if c["call"] == "cudnnDestroy"]
    assert destroyed == [other]


@pytest.mark.cuda_on_cpu
def test_where_the_weights_are(stub: Stub) -> None:
    library = _libcudnn.find()
    assert isinstance(library, _libcudnn.Library)
    with contextlib.ExitStack() as stack:
        enter = stack.enter_context
        handle = library.handles.get(0)
        net = enter(
            library.rnn(
                "float32",
                "gru",
                skip=False,
                bidirectional=False,
                input_size=2,
                hidden_size=3,
                proj_size=3,
                num_layers=1,
                tf32=False,
                dropout=enter(library.dropout(handle, 0, 0, 0, 0)),
            )
        )
        found = library.weight_params(handle, net, 4, (600, 1 << 40), 5)
    assert found == (_libcudnn.Matrix((1 << 40) + 8, (1, 2, 3)), None)
    called = stub.last("cudnnGetRNNWeightParams")
    names = ("pseudoLayer", "wSize", "w", "matrix")
    assert [called[n] for n in names] == [4, 600, 1 << 40, 5]


def swap(name: str, first: int, second: int) -> Callable[[pytest.MonkeyPatch], None]:
    """Plant two arguments of a call in the wrong order."""

    def plant(monkeypatch: pytest.MonkeyPatch) -> None:
        call = _libcudnn.Library.call

        def swapped(self: Any, called: str, *args: Any) -> None:
            given = list(args)
            if called == name:
                given[first], given[second] = given[second], given[first]
            call(self, called, *given)

        monkeypatch.setattr(_libcudnn.Library, "call", swapped)

    return plant


def plant_wrong_order(monkeypatch: pytest.MonkeyPatch) -> None:
    data, weights = _cudnn._Nine.backward_data, _cudnn._Nine.backward_weights
    later: list[Any] = []
    monkeypatch.setattr(_cudnn._Nine, "backward_data", lambda *args: later.append(args))
    monkeypatch.setattr(
        _cudnn._Nine, "backward_weights", lambda *args: (weights(*args), data(*later.pop()))
    )


def plant_kept_reserve(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fake_cupy.ndarray, "copy", lambda self, order="C": self)


def plant_dirty_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["cupy"], "zeros", fake_cupy.empty)


def plant_no_pass_through(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_cudnn, "_pass_through", lambda *args: None)


PLANTED = {
    "order of the backward calls": plant_wrong_order,
    "reserve not copied": plant_kept_reserve,
    "memory not zeroed": plant_dirty_memory,
    "states of empty sequences": plant_no_pass_through,
} | {
    f"{name} {i} {j}": swap(name, i, j)
    for name, pairs in {
        "cudnnRNNForward": ((5, 7), (4, 6), (9, 10), (12, 13), (9, 12), (8, 11)),
        "cudnnRNNBackwardData_v8": ((4, 5), (5, 10), (9, 10), (10, 11), (13, 14), (10, 14)),
        "cudnnRNNBackwardWeights_v8": ((5, 9), (5, 7), (4, 8)),
        "cudnnSetRNNDescriptor_v8": ((1, 2), (4, 5), (6, 7), (7, 8), (9, 10), (11, 12)),
        "cudnnSetRNNDataDescriptor": ((1, 2), (3, 4), (4, 5)),
        "cudnnSetTensorNdDescriptor": ((3, 4),),
    }.items()
    for i, j in pairs
}


@pytest.mark.cuda_on_cpu
@pytest.mark.parametrize("plant", PLANTED.values(), ids=PLANTED)
def test_planted_errors_are_caught(
    cupy_on_cpu: Any,
    stub: Stub,
    monkeypatch: pytest.MonkeyPatch,
    plant: Callable[[pytest.MonkeyPatch], None],
) -> None:
    # What is written in the wrong place is not larger than what belongs there.
    case = Case("lstm", 7, 3, 7, 5, 2, BI, 3, lengths=(2, 7, 0))
    test_every_argument_of_both_passes(cupy_on_cpu, stub, case, "float32")
    plant(monkeypatch)
    stub.dll.stub_reset()
    with pytest.raises((AssertionError, RuntimeError)):
        test_every_argument_of_both_passes(cupy_on_cpu, stub, case, "float32")


def declared(source: str) -> dict[str, tuple[Any, ...]]:
    """Return the types of the arguments of the functions that C source declares."""
    plain = re.sub(r"/\*.*?\*/|//[^\n]*", "", source, flags=re.DOTALL)
    numbers = {
        "int": c_int,
        "int32_t": c_int32,
        "uint32_t": c_uint32,
        "size_t": c_size_t,
        "float": c_float,
        "unsigned long long": c_uint64,
    }

    def kind(parameter: str) -> Any:
        name = re.sub(r"\bconst\b", "", parameter).strip()
        if re.search(r"[*\[]|^(\w+Descriptor_t|cudnnHandle_t|cudaStream_t)\b", name):
            return c_void_p
        name = re.sub(r"\s*\b\w+$", "", name)
        return c_int if re.fullmatch(r"cudnn\w+_t", name) else numbers[name]

    found = re.findall(r"cudnnStatus_t\s+(?:CUDNNWINAPI\s+)?(\w+)\(([^()]*)\)\s*[;{]", plain)
    return {
        name: tuple(kind(p) for p in arguments.split(","))
        for name, arguments in found
        if name in _libcudnn.PROTOTYPES
    }


def test_the_stub_declares_what_the_package_calls() -> None:
    expanded = STUB + "".join(
        f"cudnnStatus_t cudnnCreate{kind}Descriptor(cudnn{kind}Descriptor_t* d);"
        f"cudnnStatus_t cudnnDestroy{kind}Descriptor(cudnn{kind}Descriptor_t d);"
        for kind in ("Dropout", "RNN", "RNNData", "Tensor")
    )
    assert declared(expanded) == _libcudnn.PROTOTYPES


def message_of(monkeypatch: pytest.MonkeyPatch, setting: Path) -> str:
    monkeypatch.setenv("CUPYRNN_CUDNN", str(setting))
    _libcudnn._attempt.cache_clear()
    found = _libcudnn.find()
    assert isinstance(found, str)
    start = f"libcudnn.so.9 was not found (CUPYRNN_CUDNN={setting}; "
    install = (
        "); install it with: pip install 'cupyrnn[cudnn13]' for CUDA 13,"
        " pip install 'cupyrnn[cudnn12]' for CUDA 12"
    )
    assert found.startswith(start)
    assert found.endswith(install)
    return found.removeprefix(start).removesuffix(install)


def test_a_wrong_path_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    absent = "cannot open shared object file: No such file or directory"
    file = tmp_path / "libcudnn.so.9"
    for setting, path in ((tmp_path, file), (tmp_path / "x" / "y", tmp_path / "x" / "y")):
        assert message_of(monkeypatch, setting) == f"{path}: {absent}"
    file.write_text("no library")
    for setting in (file, tmp_path):
        assert message_of(monkeypatch, setting).startswith(f"{file}: ")


@pytest.mark.cuda_on_cpu
def test_libraries_that_would_end_the_process_are_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = install(tmp_path / "eight", EIGHT)
    assert message_of(monkeypatch, path) == f"{path}: not cuDNN 9, which is needed"
    for missing in _libcudnn._SUBLIBRARIES:
        folder = tmp_path / missing
        parts = tuple(p for p in _libcudnn._SUBLIBRARIES if p != missing)
        path = install(folder, parts=parts)
        expected = f"{path}: incomplete: {folder / missing}: cannot open shared object file"
        assert message_of(monkeypatch, folder).startswith(expected)
    path = install(tmp_path / "ten", STUB.replace("91301", "100200"))
    assert message_of(monkeypatch, path) == f"{path}: cuDNN 10.2.0, expected 9"
    path = install(tmp_path / "short", STUB.replace("cudnnRNNBackwardData_v8(", "another("))
    assert "undefined symbol: cudnnRNNBackwardData_v8" in message_of(monkeypatch, path)


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no cuDNN in any place."""
    monkeypatch.setitem(sys.modules, "cuda.pathfinder", None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(_libcudnn, "SONAME", "libcudnn-of-the-test.so.9")


@pytest.mark.usefixtures("nowhere")
def test_all_places_that_were_looked_in_are_named() -> None:
    assert _libcudnn.find() == (
        "libcudnn-of-the-test.so.9 was not found (CUPYRNN_CUDNN: not set;"
        " cuda.pathfinder: not installed;"
        " the wheels nvidia-cudnn-cu12 and nvidia-cudnn-cu13: not installed;"
        " libcudnn-of-the-test.so.9: cannot open shared object file: No such file or directory);"
        " install it with: pip install 'cupyrnn[cudnn13]' for CUDA 13,"
        " pip install 'cupyrnn[cudnn12]' for CUDA 12"
    )


@pytest.mark.cuda_on_cpu
@pytest.mark.usefixtures("nowhere")
def test_where_it_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def path() -> str:
        _libcudnn._attempt.cache_clear()
        found = _libcudnn.find()
        assert isinstance(found, _libcudnn.Library), found
        return found.path

    wheel = install(tmp_path / "wheel" / "lib")
    wheel = wheel.rename(wheel.with_name("libcudnn-of-the-test.so.9"))
    spec = types.SimpleNamespace(submodule_search_locations=[str(tmp_path / "wheel")])
    names = []
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: names.append(name) or spec)
    assert path() == str(wheel)
    assert names == ["nvidia.cudnn"]

    other = install(tmp_path / "pathfinder")

    def load(name: str) -> Any:
        assert name == "cudnn"
        return types.SimpleNamespace(abs_path=str(other))

    finder = types.SimpleNamespace(load_nvidia_dynamic_lib=load)
    monkeypatch.setitem(sys.modules, "cuda.pathfinder", finder)
    assert path() == str(other)

    def fail(name: str) -> Any:
        raise RuntimeError(f"no {name}\nhere")

    finder.load_nvidia_dynamic_lib = fail
    assert path() == str(wheel)

    set_path = install(tmp_path / "set")
    monkeypatch.setenv("CUPYRNN_CUDNN", str(set_path))
    assert path() == str(set_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUPYRNN_CUDNN", "set/libcudnn.so.9")
    assert path() == str(set_path)


@pytest.mark.parametrize(
    ("version", "text"), [(92800, "9.28.0"), (91301, "9.13.1"), (8907, "8.9.7")]
)
def test_versions_as_people_write_them(version: int, text: str) -> None:
    assert _libcudnn.dotted(version) == text


# The calls of cupy.cuda.cudnn with the parameters that CuPy 13 gives them.
LEGACY = {
    "create": "",
    "destroy": "handle",
    "setStream": "handle stream",
    "getVersion": "",
    **{
        f"{verb}{kind}Descriptor": "" if verb == "create" else "desc"
        for verb in ("create", "destroy")
        for kind in ("Dropout", "RNN", "RNNData", "Tensor", "Filter")
    },
    "dropoutGetStatesSize": "handle",
    "setDropoutDescriptor": "dropoutDesc handle dropout states stateSizeInBytes seed",
    "setRNNDescriptor_v6": "handle rnnDesc hiddenSize numLayers dropoutDesc inputMode direction"
    " mode algo dataType",
    "setRNNPaddingMode": "rnnDesc paddingMode",
    "setRNNDataDescriptor": "RNNDataDesc dataType layout maxSeqLength batchSize vectorSize"
    " seqLengthArray paddingFill",
    "setTensorNdDescriptor": "tensorDesc dataType nbDims dimA strideA",
    "setFilterNdDescriptor_v4": "filterDesc dataType format nbDims filterDimA",
    "getRNNWorkspaceSize": "handle rnnDesc seqLength xDesc",
    "getRNNTrainingReserveSize": "handle rnnDesc seqLength xDesc",
    "getRNNParamsSize": "handle rnnDesc xDesc dataType",
    "RNNForwardInferenceEx": "handle rnnDesc xDesc x hxDesc hx cxDesc cx wDesc w yDesc y hyDesc"
    " hy cyDesc cy kDesc keys cDesc cAttn iDesc iAttn qDesc queries workSpace"
    " workSpaceSizeInBytes",
    "RNNForwardTrainingEx": "handle rnnDesc xDesc x hxDesc hx cxDesc cx wDesc w yDesc y hyDesc hy"
    " cyDesc cy kDesc keys cDesc cAttn iDesc iAttn qDesc queries workSpace workSpaceSizeInBytes"
    " reserveSpace reserveSpaceSizeInBytes",
    "RNNBackwardDataEx": "handle rnnDesc yDesc y dyDesc dy dcDesc dcAttn dhyDesc dhy dcyDesc dcy"
    " wDesc w hxDesc hx cxDesc cx dxDesc dx dhxDesc dhx dcxDesc dcx dkDesc dkeys workSpace"
    " workSpaceSizeInBytes reserveSpace reserveSpaceSizeInBytes",
    "RNNBackwardWeightsEx": "handle rnnDesc xDesc x hxDesc hx yDesc y workSpace"
    " workSpaceSizeInBytes dwDesc dw reserveSpace reserveSpaceSizeInBytes",
}


def integers(address: int, count: int) -> list[int]:
    return list((ctypes.c_int32 * count).from_address(address))


class Legacy(types.ModuleType):
    """cupy.cuda.cudnn of CuPy 13, recording; descriptors are shown by what was set."""

    WORK, RESERVE = 40, 37
    version = 8907

    def __init__(self, params_bytes: int) -> None:
        super().__init__("cupy.cuda.cudnn")
        self.params_bytes = params_bytes
        self.log: list[tuple[str, dict[str, Any]]] = []
        self.texts: dict[int, str] = {}
        self.alive: set[int] = set()
        self.numbers = itertools.count(1000)

    def __getattr__(self, name: str) -> Any:
        if name not in LEGACY:
            raise AttributeError(name)
        names = LEGACY[name].split()

        def call(*args: Any) -> Any:
            assert len(args) == len(names), name
            for a, n in zip(args, names, strict=True):
                assert isinstance(a, float if n == "dropout" else int), (name, n, a)
            return self._do(name, dict(zip(names, args, strict=True)))

        return call

    def last(self, name: str) -> dict[str, Any]:
        return next(a for n, a in reversed(self.log) if n == name)

    def _do(self, name: str, a: dict[str, Any]) -> Any:
        if name.startswith("create"):
            made = next(self.numbers)
            if name != "create":
                self.alive.add(made)
            return made
        if name.startswith("destroy"):
            return self.alive.discard(a.get("desc", 0))
        if name == "setRNNDataDescriptor":
            sizes = [a[n] for n in ("maxSeqLength", "batchSize", "vectorSize")]
            assert ctypes.c_uint64.from_address(a["paddingFill"]).value == 0
            lengths = " ".join(map(str, integers(a["seqLengthArray"], sizes[1])))
            self.texts[a["RNNDataDesc"]] = (
                f"data {a['dataType']} layout {a['layout']} T {sizes[0]} B {sizes[1]}"
                f" V {sizes[2]} fill 0 lengths {lengths}"
            )
        elif name == "setTensorNdDescriptor":
            assert a["nbDims"] == 3
            dims, strides = (" ".join(map(str, integers(a[n], 3))) for n in ("dimA", "strideA"))
            text = f"data {a['dataType']} dims {dims} strides {strides}"
            self.texts[a["tensorDesc"]] = text
        elif name == "setFilterNdDescriptor_v4":
            dims = integers(a["filterDimA"], a["nbDims"])
            self.texts[a["filterDesc"]] = f"data {a['dataType']} {a['format']} dims {dims}"
        elif name in ("getRNNWorkspaceSize", "getRNNTrainingReserveSize"):
            array = (ctypes.c_size_t * a["seqLength"]).from_address(a["xDesc"])
            a["xDesc"] = sorted({self.texts[d] for d in array})
        shown = {
            n: self.texts.get(v, v) if n.endswith("Desc") and v in self.texts else v
            for n, v in a.items()
            if not isinstance(v, list)
        }
        self.log.append((name, {**a, **shown}))
        if name.startswith(("RNNForwardT", "RNNBackward")):
            assert (a["workSpaceSizeInBytes"], a["reserveSpaceSizeInBytes"]) == (40, 37)
            reserve = (ctypes.c_char * 37).from_address(a["reserveSpace"])
            state = {"RNNForwardTrainingEx": 1, "RNNBackwardDataEx": 2, "RNNBackwardWeightsEx": 3}
            expected = bytes([state[name] - 1] * 37)
            assert name == "RNNForwardTrainingEx" or reserve.raw == expected, name
            reserve.raw = bytes([state[name]] * 37)
        if name == "RNNBackwardWeightsEx":
            dw = (ctypes.c_double * (self.params_bytes // 8)).from_address(a["dw"])
            dw[:] = [v + 1 for v in dw]
        return {
            "getVersion": self.version,
            "dropoutGetStatesSize": 64,
            "getRNNWorkspaceSize": self.WORK,
            "getRNNTrainingReserveSize": self.RESERVE,
            "getRNNParamsSize": self.params_bytes,
        }.get(name)


@pytest.fixture
def legacy(
    cupy_on_cpu: Any, nowhere: None, monkeypatch: pytest.MonkeyPatch
) -> Callable[[Case], Legacy]:
    """CuPy 13 with cuDNN 8, and no cuDNN 9."""
    with_streams(cupy_on_cpu, monkeypatch)
    monkeypatch.setattr(_libcudnn, "missing_sublibrary", lambda folder, names: None)
    monkeypatch.setattr(
        cupy_on_cpu.cuda.Device, "compute_capability", property(lambda _: "75"), raising=False
    )

    def installed(case: Case) -> Legacy:
        _cudnn._legacy.cache_clear()
        module = Legacy(8 * params_size(case))
        monkeypatch.setitem(sys.modules, "cupy.cuda.cudnn", module)
        return module

    return installed


LEGACY_CASES = [c for c in CASES if not c.num_proj and 0 not in (c.lengths or ())]


@pytest.mark.cuda_on_cpu
@pytest.mark.parametrize("case", LEGACY_CASES, ids=case_id)
def test_every_argument_of_both_passes_on_cudnn_8(
    cupy_on_cpu: Any, legacy: Callable[[Case], Legacy], case: Case
) -> None:
    cupy, cudnn, config = cupy_on_cpu, legacy(case), config_of(case)
    args = given(cupy, case, "float64")
    assert _cudnn.why_not(config, "float64", args["lengths"]) is None
    output, output_h, output_c, reserve = _cudnn.forward(config, **args)
    h = tensor_text(case, "float64", case.H)
    x, y = (data_text(case, "float64", V) for V in (case.I, case.D * case.H))
    w = f"data 1 0 dims [{params_size(case)}, 1, 1]"
    attention = dict.fromkeys(
        ["kDesc", "keys", "cDesc", "cAttn", "iDesc", "iAttn", "qDesc", "queries"], 0
    )
    called = cudnn.last("RNNForwardTrainingEx")
    own = {n: called[n] for n in ("handle", "rnnDesc")}
    spaces = {"workSpaceSizeInBytes": 40, "reserveSpaceSizeInBytes": 37}
    assert called == own | spaces | attention | {
        **{"xDesc": x, "x": pointer(args["input"]), "wDesc": w, "w": pointer(args["params"])},
        **{"hxDesc": h, "hx": pointer(args["input_h"]), "hyDesc": h, "hy": pointer(output_h)},
        **{"cxDesc": h, "cx": pointer(args["input_c"]), "cyDesc": h, "cy": pointer(output_c)},
        **{"yDesc": y, "y": pointer(output), "reserveSpace": pointer(reserve)},
        "workSpace": called["workSpace"],
    }
    net = cudnn.last("setRNNDescriptor_v6")
    assert net == {
        **{"handle": own["handle"], "rnnDesc": own["rnnDesc"], "hiddenSize": case.H},
        **{"numLayers": case.L, "dropoutDesc": net["dropoutDesc"], "inputMode": int(case.skip)},
        **{"direction": case.D - 1, "mode": CELLS[case.rnn_mode], "algo": 0, "dataType": 1},
    }
    assert cudnn.last("setRNNPaddingMode") == {"rnnDesc": own["rnnDesc"], "paddingMode": 1}
    assert cudnn.last("setStream")["stream"] == 0x57
    step = f"data 1 dims {case.B} {case.I} 1 strides {case.I} 1 1"
    for name in ("getRNNWorkspaceSize", "getRNNTrainingReserveSize"):
        found = cudnn.last(name)
        assert (found["seqLength"], found["xDesc"]) == (case.T, [step])
    assert cudnn.last("getRNNParamsSize")["xDesc"] == step

    before = reserve.tobytes()
    cotangents = cotangents_of(np.random.default_rng(0), case)
    dy, dhy, dcy = (cupy.asarray(cotangents[n]) if n in cotangents else None for n in COTANGENTS)
    for _ in range(2):
        dx, dhx, dcx, dw = _cudnn.backward(*(config, *args.values(), output, dy, dhy, dcy, reserve))
        assert reserve.tobytes() == before
        called = cudnn.last("RNNBackwardDataEx")
        own = {n: called[n] for n in ("handle", "rnnDesc", "workSpace", "reserveSpace")}
        nothing = dict.fromkeys(("dcDesc", "dcAttn", "dkDesc", "dkeys"), 0)
        assert called == own | spaces | nothing | {
            **{"yDesc": y, "y": pointer(output), "dyDesc": y, "dy": pointer(dy)},
            **{"dhyDesc": h, "dhy": pointer(dhy), "dcyDesc": h, "dcy": pointer(dcy)},
            **{"wDesc": w, "w": pointer(args["params"]), "dxDesc": x, "dx": pointer(dx)},
            **{"hxDesc": h, "hx": pointer(args["input_h"]), "dhxDesc": h, "dhx": pointer(dhx)},
            **{"cxDesc": h, "cx": pointer(args["input_c"]), "dcxDesc": h, "dcx": pointer(dcx)},
        }
        assert cudnn.last("RNNBackwardWeightsEx") == own | spaces | {
            **{
                "xDesc": x,
                "x": pointer(args["input"]),
                "hxDesc": h,
                "hx": pointer(args["input_h"]),
            },
            **{"yDesc": y, "y": pointer(output), "dwDesc": w, "dw": pointer(dw)},
        }
        np.testing.assert_array_equal(cupy.asnumpy(dw), np.ones(params_size(case)))
    inference = config._replace(is_training=False)
    assert _cudnn.forward(inference, **args)[3].shape == (0,)
    called = cudnn.last("RNNForwardInferenceEx")
    assert (called["hx"], called["workSpaceSizeInBytes"]) == (pointer(args["input_h"]), 40)
    assert not cudnn.alive, "descriptors were left"


@pytest.mark.cuda_on_cpu
def test_dropout_and_half_precision_on_cudnn_8(
    cupy_on_cpu: Any, legacy: Callable[[Case], Legacy]
) -> None:
    case = Case("gru", 3, 2, 4, 5, 2)
    cudnn, config = legacy(case), config_of(case, dropout=0.5, seed=1, seed2=2)
    args = given(cupy_on_cpu, case, "float64")
    output, _, _, reserve = _cudnn.forward(config, **args)
    forward_call = cudnn.last("setDropoutDescriptor")
    wanted = {"dropout": 0.5, "stateSizeInBytes": 64, "seed": 2**32 + 2}
    assert {n: forward_call[n] for n in wanted} == wanted
    assert forward_call["states"]
    _cudnn.backward(config, *args.values(), output, output, None, None, reserve)
    assert {n: cudnn.last("setDropoutDescriptor")[n] for n in wanted} == wanted
    assert _cudnn.reserve_size(config, "float64", None) == reserve.size == 5
    assert cudnn.last("setDropoutDescriptor")["states"] == 0
    cudnn.params_bytes //= 4
    _cudnn.forward(config, **given(cupy_on_cpu, case, "float16"))
    assert cudnn.last("setRNNDescriptor_v6")["dataType"] == 0
    assert cudnn.last("getRNNParamsSize")["dataType"] == 2


@pytest.mark.cuda_on_cpu
def test_what_cudnn_8_does_not_have(
    cupy_on_cpu: Any, legacy: Callable[[Case], Legacy], monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Case("lstm", 3, 2, 4, 5)
    cudnn = legacy(case)

    def lack(dtype: str = "float32", lengths: Any = None, **changed: Any) -> str | None:
        reason = _cudnn.why_not(config_of(case)._replace(**changed), dtype, lengths)
        if reason is None:
            return None
        found = re.fullmatch(
            r"cuDNN 8 through CuPy does not have (.*), and libcudnn\S+ was not found .*", reason
        )
        return found[1] if found else reason

    assert lack() is None
    assert lack(num_proj=3) == "num_proj = 3"
    assert lack("bfloat16") == "bfloat16"
    assert lack(lengths=np.array([3, 0], np.int32)) == "sequences of length 0"
    assert lack(lengths=np.array([3, 1], np.int32)) is None
    monkeypatch.setattr(cupy_on_cpu.cuda.Device, "compute_capability", property(lambda _: "80"))
    assert lack() == "float32 without TF32 on this device (CUPY_TF32=1 allows it)"
    assert lack("float64") is lack("float16") is None
    monkeypatch.setenv("CUPY_TF32", "1")
    assert lack() is None
    nine = _libcudnn.find()
    for changes, reason in (
        ({"version": 7605}, "cupy.cuda.cudnn has cuDNN 7.6.5, expected 8"),
        ({"available": False}, "cupy.cuda.cudnn finds no libcudnn.so.8"),
    ):
        _cudnn._legacy.cache_clear()
        for name, value in changes.items():
            monkeypatch.setattr(cudnn, name, value, raising=False)
        assert lack() == f"{nine}; {reason}"
    monkeypatch.setitem(sys.modules, "cupy.cuda.cudnn", None)
    _cudnn._legacy.cache_clear()
    assert lack() == f"{nine}; this CuPy has no cupy.cuda.cudnn"


@pytest.mark.cuda_on_cpu
def test_an_incomplete_cudnn_8_is_not_called(
    cupy_on_cpu: Any, legacy: Callable[[Case], Legacy], monkeypatch: pytest.MonkeyPatch
) -> None:
    cudnn = legacy(Case("lstm", 3, 2, 4, 5))
    monkeypatch.setattr(_libcudnn, "missing_sublibrary", lambda folder, names: f"no {names[3]}")
    reason = _cudnn.why_not(config_of(Case("lstm", 3, 2, 4, 5)), "float32", None)
    assert reason == f"{_libcudnn.find()}; cupy.cuda.cudnn: no libcudnn_adv_train.so.8"
    assert not cudnn.log
    assert _cudnn._loaded_from("libc.so") == str(Path(_cudnn._loaded_from("libc.so")).resolve())
    assert os.path.isdir(_cudnn._loaded_from("libc.so"))
    assert _cudnn._loaded_from("libnone.so") == ""


class HostLibrary:
    """The real cuDNN without a device, in a process that may die.

    No handle can be made there. But what the host does with one, it does with zeros as well, and
    arguments are checked before the device is asked for, which ends a call with a status of
    EXECUTION_FAILED or, in earlier versions, INTERNAL_ERROR.
    """

    def __init__(self) -> None:
        library = _libcudnn.find()
        assert isinstance(library, _libcudnn.Library), library
        self.library, self.zeros = library, ctypes.create_string_buffer(1 << 20)
        self.handle = ctypes.addressof(self.zeros)
        self.ended: list[str] = []
        call = library.call

        def tolerant(name: str, *args: Any) -> None:
            if name == "cudnnSetStream":
                return  # it makes streams
            try:
                call(name, *args)
            except _libcudnn.CudnnError as error:
                if error.status // 1000 not in (4, 5):
                    raise
                self.ended.append(name)

        vars(library)["call"] = tolerant
        vars(library)["handles"] = types.SimpleNamespace(get=lambda device: self.handle)

    @contextlib.contextmanager
    def net(self, case: Case, dtype: str) -> Iterator[int]:
        sizes = {"input_size": case.I, "hidden_size": case.H, "proj_size": case.P}
        flags = {"skip": case.skip, "bidirectional": case.D == 2, "tf32": False}
        with (
            self.library.dropout(self.handle, 0.0, 0, 0, 0) as dropout,
            self.library.rnn(
                dtype, case.rnn_mode, **sizes, **flags, num_layers=case.L, dropout=dropout
            ) as net,
        ):
            yield net


def assert_layout(
    library: _libcudnn.Library, handle: int, net: int, case: Case, itemsize: int
) -> None:
    """cuDNN has every matrix and every bias where cudnn_rnn_params_layout says."""
    pieces = cupyrnn.cudnn_rnn_params_layout(
        *(case.L, case.H, case.I),
        rnn_mode=case.rnn_mode,  # type: ignore[arg-type]
        input_mode=case.input_mode,  # type: ignore[arg-type]
        direction=case.direction,  # type: ignore[arg-type]
        num_proj=case.num_proj,
    )
    size = library.weight_space_size(handle, net)
    assert size == params_size(case) * itemsize
    gates, base = GATES[case.rnn_mode], 1 << 20
    found: dict[Any, Any] = {}
    for pl in range(case.L * case.D):
        for matrix in range(2 * len(gates) + (case.num_proj > 0)):
            kinds = ("input", "recurrent", "projection")
            kind, gate = kinds[matrix // len(gates)], matrix % len(gates)
            name = "" if kind == "projection" else gates[gate]
            m, b = library.weight_params(handle, net, pl, (size, base), matrix)
            for what, at in ((kind, m), (f"{kind}_bias", b)):
                if at is not None:
                    offset, rest = divmod(at.address - base, itemsize)
                    assert rest == 0
                    shape = tuple(n for n in at.shape if n > 1)
                    found[what, pl, name] = offset, shape
    expected = {
        (p.kind, p.layer * case.D + p.direction, p.gate): (
            p.offset,
            tuple(n for n in p.shape if n > 1),
        )
        for p in pieces
        if p.size
    }
    assert found == expected


LAYOUTS = [
    Case(mode, 1, 1, I, H, L, direction, P, input_mode)
    for mode, (I, H), L, direction, P, input_mode in itertools.product(
        GATES, ((3, 5), (4, 4), (1, 2), (7, 1)), (1, 2, 3), (UNI, BI), (0, 1, 3), (LINEAR, SKIP)
    )
    if (input_mode == LINEAR or I == H) and (not P or (mode == "lstm" and H > P))
]


def probe_layout() -> None:
    real = HostLibrary()
    for case, (dtype, itemsize) in itertools.product(LAYOUTS, (("float32", 4), ("float16", 2))):
        with real.net(case, dtype) as net:
            assert_layout(real.library, real.handle, net, case, itemsize)


def probe_descriptors() -> None:
    """What is refused, and that nothing else is."""
    real = HostLibrary()

    def status(make: contextlib.AbstractContextManager[int]) -> int:
        try:
            with make:
                return 0
        except _libcudnn.CudnnError as error:
            return error.status

    case = Case("lstm", 5, 3, 4, 6)
    for dtype in DTYPES:
        refused = dtype == "bfloat16" and real.library.version < 91300
        assert status(real.net(case, dtype)) == (3000 if refused else 0), dtype
    assert status(real.net(case._replace(num_proj=3), "float32")) == 0
    assert status(real.net(Case("gru", 5, 3, 4, 6, num_proj=3), "float32")) == 3000
    assert status(real.net(case._replace(num_proj=7), "float32")) != 0
    for lengths, expected in (
        ([5, 1, 3], 0),
        ([1, 2, 5], 0),
        ([6, 1, 1], 2000),
        ([1, -1, 1], 2000),
    ):
        assert status(real.library.data("float32", 5, 4, lengths)) == expected, lengths
    assert status(real.library.data("float32", 65536, 4, [1])) != 0
    with pytest.raises(_libcudnn.CudnnError, match=r"^cudnnCreate .*_NOT_INITIALIZED"):
        _libcudnn.Library(real.library.path).handles.get(0)


def both_passes(case: Case, args: dict[str, Any]) -> None:
    output, h, c, reserve = _cudnn.forward(config_of(case), **args)
    _cudnn.backward(config_of(case), *args.values(), output, output, h, c, reserve)


def probe_calls() -> None:
    """All arguments of a whole call pass the checks of the real library, and wrong ones do not."""
    real = HostLibrary()
    cupy: Any = fake_cupy.module()
    sys.modules["cupy"] = cupy
    cupy.cuda.get_current_stream = lambda: types.SimpleNamespace(ptr=0)
    cupy.cuda.get_device_id = lambda: 0
    cupy.copyto = lambda *args, **kwargs: None
    refused = []
    for case, dropout, training in itertools.product(CUDNN_CASES, (0.0, 0.5, 1.0), (False, True)):
        config = config_of(case, dropout=dropout, is_training=training)
        args = given(cupy, case, "float64")
        reason = _cudnn.why_not(config, "float64", args["lengths"])
        if reason is not None:
            assert 0 in (case.lengths or ()), (case, reason)
            refused.append(case)
            continue
        real.ended.clear()
        output, h, c, reserve = _cudnn.forward(config, **args)
        assert real.ended[-1] == "cudnnRNNForward"
        if training:
            _cudnn.backward(config, *args.values(), output, output, h, c, reserve)
            assert real.ended[-2:] == ["cudnnRNNBackwardData_v8", "cudnnRNNBackwardWeights_v8"]
    assert not refused or real.library.version < 92800, refused

    case = Case("lstm", 7, 3, 7, 5, 2, BI, 3, lengths=(2, 7, 1))
    args = given(cupy, case, "float64")
    call = real.library.call
    for name, first, second in (
        ("cudnnRNNForward", 4, 6),
        ("cudnnRNNForward", 8, 11),
        ("cudnnRNNForward", 14, 16),
        ("cudnnRNNBackwardData_v8", 3, 6),
        ("cudnnRNNBackwardData_v8", 8, 12),
        ("cudnnRNNBackwardWeights_v8", 4, 8),
        ("cudnnSetRNNDescriptor_v8", 6, 8),
        ("cudnnSetRNNDescriptor_v8", 10, 11),
    ):

        def swapped(called: str, *given: Any, swap: Any = (name, first, second)) -> None:
            now = list(given)
            if called == swap[0]:
                now[swap[1]], now[swap[2]] = now[swap[2]], now[swap[1]]
            call(called, *now)

        vars(real.library)["call"] = swapped
        with pytest.raises(_libcudnn.CudnnError) as error:
            both_passes(case, args)
        assert error.value.status // 1000 in (2, 3), (name, error.value)


def in_a_process(code: str) -> subprocess.CompletedProcess[str]:
    """Run Python with no device in sight, in a process that may die."""
    path = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    hidden = {"CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": os.pathsep.join(filter(None, path))}
    command = [sys.executable, "-c", code]
    return subprocess.run(command, env=os.environ | hidden, capture_output=True, text=True)


@functools.cache
def real_library() -> str | None:
    """Return where cuDNN 9 is, None if it is not installed."""
    done = in_a_process(
        "from cupyrnn import _libcudnn\n"
        "found = _libcudnn.find()\n"
        "print('' if isinstance(found, str) else found.path)"
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip() or None


@pytest.mark.parametrize("probe", ["layout", "descriptors", "calls"])
def test_the_host_code_of_the_real_library(probe: str) -> None:
    if real_library() is None:
        pytest.skip(NEEDS_CUDNN)
    done = in_a_process(f"import test_libcudnn; test_libcudnn.probe_{probe}()")
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_prototypes_of_the_real_header() -> None:
    path = real_library()
    include = Path(path or "").parent.parent / "include"
    headers = [include / f"cudnn_{part}.h" for part in ("graph", "ops", "adv")]
    if not all(h.exists() for h in headers):
        pytest.skip(NEEDS_CUDNN)
    found = declared("".join(h.read_text(encoding="utf-8") for h in headers))
    assert found == _libcudnn.PROTOTYPES


ENGINE: Any = "cudnn"


@pytest.fixture
def cudnn_on_gpu(cupy_on_gpu: Any) -> Ops:
    """The public functions on a GPU that cuDNN can use."""
    reason = _cudnn.why_not(config_of(Case("lstm", 3, 2, 4, 5)), "float64", None)
    if reason is not None:
        pytest.skip(f"{NEEDS_CUDNN} ({reason})")
    return Ops(cupy_on_gpu)


def needed(case: Case, dtype: str = "float64") -> None:
    """Skip what this cuDNN does not have."""
    reason = _cudnn.why_not(config_of(case), dtype, lengths_of(case))
    if ENGINE == "cudnn" and reason is not None:
        pytest.skip(f"{NEEDS_CUDNN} ({reason})")


def widened(arrays: dict[str, Any]) -> dict[str, Any]:
    return {n: a.astype(np.float64) for n, a in arrays.items()}


def poison_padding(case: Case, arrays: dict[str, Any], name: str) -> None:
    """Put NaN where the sequences have ended."""
    for b, n in enumerate(case.lengths or ()):
        arrays[name][n:, b] = np.nan


def agrees(ops: Ops, case: Case, dtype: str, **more: Any) -> None:
    """Outputs and gradients are those of the NumPy engine in float64."""
    needed(case, dtype)
    rng = np.random.default_rng(1)
    kind = dtype_of(dtype)
    inputs, cotangents = problem(rng, case, kind), cotangents_of(rng, case, kind)
    inference, expected = (
        forward(cupyrnn, case, widened(inputs), is_training=training, **more)
        for training in (False, True)
    )
    expected_grads = backward(cupyrnn, case, widened(inputs), expected, widened(cotangents), **more)
    poison_padding(case, inputs, "input")
    poison_padding(case, cotangents, "output_backprop")
    for training, right in ((False, inference), (True, expected)):
        out = forward(ops, case, inputs, engine=ENGINE, is_training=training, **more)
        for name in ("output", "output_h", "output_c"):
            a, e = getattr(out, name), getattr(right, name)
            assert a.dtype == kind
            assert_close(a, e, dtype, f"{name}, is_training={training}")
    grads = backward(ops, case, inputs, out, cotangents, engine=ENGINE, **more)
    for name, a, e in zip(grads._fields, grads, expected_grads, strict=True):
        assert_close(a, e, dtype, name)


# Sizes of TensorFlow's own tests, and some that take other kernels of cuDNN.
GPU_CASES = [
    *CUDNN_CASES,
    *(Case(mode, 4, 4, 4, 4, 2, BI, 0, SKIP, (2, 4, 1, 3)) for mode in GATES),
    *(Case(mode, 16, 8, 64, 128) for mode in GATES),
    Case("lstm", 32, 16, 128, 128, 2, BI),
    Case("lstm", 16, 8, 64, 128, 2, UNI, 32, lengths=(1, 16, 2, 0, 9, 16, 3, 5)),
    Case("gru", 50, 3, 17, 150, 3, lengths=(20, 50, 1)),
]


@pytest.mark.gpu
@each_dtype
@pytest.mark.parametrize("case", GPU_CASES, ids=case_id)
def test_cudnn_agrees_with_numpy(cudnn_on_gpu: Ops, case: Case, dtype: str) -> None:
    agrees(cudnn_on_gpu, case, dtype)


@pytest.mark.gpu
@pytest.mark.parametrize("mode", GATES)
def test_cudnn_drops_all_with_a_rate_of_one(cudnn_on_gpu: Ops, mode: str) -> None:
    agrees(cudnn_on_gpu, Case(mode, 5, 3, 4, 6, 3, BI, lengths=(5, 2, 4)), "float64", dropout=1.0)


@pytest.mark.gpu
def test_cudnn_takes_batch_major_arrays(cudnn_on_gpu: Ops) -> None:
    case = Case("lstm", 5, 3, 4, 6, 2, BI, 2, lengths=(5, 2, 4))
    needed(case)
    rng = np.random.default_rng(1)
    inputs, cotangents = problem(rng, case), cotangents_of(rng, case)
    swapped = {n: a if a.ndim == 1 else a.swapaxes(0, 1).copy() for n, a in inputs.items()}
    swapped_grads = {n: a.swapaxes(0, 1).copy() for n, a in cotangents.items()}
    expected = forward(cudnn_on_gpu, case, inputs, engine=ENGINE)
    out = forward(cudnn_on_gpu, case, swapped, engine=ENGINE, time_major=False)
    for a, e in zip(out[:3], expected[:3], strict=True):
        np.testing.assert_array_equal(a, e.swapaxes(0, 1))
    expected_grads = backward(cudnn_on_gpu, case, inputs, expected, cotangents, engine=ENGINE)
    grads = backward(
        cudnn_on_gpu, case, swapped, out, swapped_grads, engine=ENGINE, time_major=False
    )
    for a, e in zip(grads, expected_grads, strict=True):
        assert_close(a, e if e.ndim == 1 else e.swapaxes(0, 1), "float64", "gradient")


@pytest.mark.gpu
@pytest.mark.parametrize("mode", GATES)
def test_cudnns_mask_is_the_same_in_both_passes(cudnn_on_gpu: Ops, mode: str) -> None:
    """Finite differences of the forward call, which draws the same mask for the same seed."""
    case = Case(mode, 4, 3, 4, 3, 2, BI, lengths=(4, 1, 3))
    needed(case)
    rng = np.random.default_rng(1)
    inputs, cotangents = problem(rng, case), cotangents_of(rng, case)
    drop = {"dropout": 0.5, "seed": 3, "seed2": 4, "engine": ENGINE}
    outputs = 3 if mode == "lstm" else 2

    def run(**changed: Any) -> Any:
        return forward(cudnn_on_gpu, case, changed, **drop)[:outputs]

    out = forward(cudnn_on_gpu, case, inputs, **drop)
    for a, e in zip(run(**inputs), out, strict=False):
        np.testing.assert_array_equal(a, e)
    other = forward(cudnn_on_gpu, case, inputs, **{**drop, "seed2": 5})
    assert np.abs(other.output - out.output).max() > 1e-3
    inference = forward(cudnn_on_gpu, case, inputs, **drop, is_training=False)
    expected = forward(cupyrnn, case, inputs, is_training=False)
    assert_close(inference.output, expected.output, "float64", "inference")
    grads = backward(cudnn_on_gpu, case, inputs, out, cotangents, **drop)._asdict()
    gradients = {n: grads[f"{n}_backprop"] for n in inputs}
    assert_gradients(run, inputs, list(cotangents.values()), gradients, rng, complex_step=False)


@pytest.mark.gpu
def test_a_second_backward_is_the_same(cudnn_on_gpu: Ops) -> None:
    case = Case("lstm", 5, 3, 4, 6, 2, BI, lengths=(5, 2, 4))
    rng = np.random.default_rng(1)
    inputs, cotangents = problem(rng, case), cotangents_of(rng, case)
    drop = {"dropout": 0.5, "engine": ENGINE}
    xp = cudnn_on_gpu.xp
    out = forward(cudnn_on_gpu, case, inputs, **drop)
    reserve = xp.asarray(out.reserve_space)
    before = xp.asnumpy(reserve).tobytes()
    first, second = (
        backward(
            cudnn_on_gpu, case, inputs, out._replace(reserve_space=reserve), cotangents, **drop
        )
        for _ in range(2)
    )
    assert xp.asnumpy(reserve).tobytes() == before
    for a, e in zip(second, first, strict=True):
        assert_close(a, e, "float64", "gradient")


@pytest.mark.gpu
@pytest.mark.parametrize("mode", GATES)
def test_the_bias_of_a_skipped_matrix_counts(cudnn_on_gpu: Ops, mode: str) -> None:
    case = Case(mode, 4, 3, 5, 5, 1, input_mode=SKIP)
    rng = np.random.default_rng(1)
    inputs, cotangents = problem(rng, case), cotangents_of(rng, case)
    pieces = cupyrnn.cudnn_rnn_params_layout(1, 5, 5, rnn_mode=mode, input_mode=SKIP)  # type: ignore[arg-type]
    bias = next(p for p in pieces if p.kind == "input_bias")
    at = slice(bias.offset, bias.offset + bias.size)
    out = forward(cudnn_on_gpu, case, inputs, engine=ENGINE)
    grads = backward(cudnn_on_gpu, case, inputs, out, cotangents, engine=ENGINE)
    expected = backward(cupyrnn, case, inputs, forward(cupyrnn, case, inputs), cotangents)
    assert_close(grads.params_backprop[at], expected.params_backprop[at], "float64", "bias")
    assert np.abs(expected.params_backprop[at]).max() > 1e-3
    inputs["params"][at] += 1
    moved = forward(cudnn_on_gpu, case, inputs, engine=ENGINE)
    assert_close(moved.output, forward(cupyrnn, case, inputs).output, "float64", "output")
    assert np.abs(moved.output - out.output).max() > 1e-3


def nine() -> _libcudnn.Library:
    library = _libcudnn.find()
    if isinstance(library, str):
        pytest.skip(f"{NEEDS_CUDNN} ({library})")
    return library


@pytest.mark.gpu
@pytest.mark.parametrize("lengths", [(1, 7, 3, 5), (7, 5, 3, 1), (1, 1, 7, 7)])
def test_lengths_need_not_be_on_the_device(
    cudnn_on_gpu: Ops, monkeypatch: pytest.MonkeyPatch, lengths: tuple[int, ...]
) -> None:
    """The package hands cuDNN a copy on the device; the manual says it is not read any more."""
    nine()
    case = Case("lstm", 7, 4, 3, 5, 2, BI, lengths=lengths)
    agrees(cudnn_on_gpu, case, "float64")
    net = _cudnn._Nine

    class WithoutCopy(net):  # type: ignore[valid-type, misc]
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            self._lengths = None

    monkeypatch.setattr(_cudnn, "_Nine", WithoutCopy)
    agrees(cudnn_on_gpu, case, "float64")


@pytest.mark.gpu
def test_what_cudnn_does_by_itself(
    cudnn_on_gpu: Ops,
    monkeypatch: pytest.MonkeyPatch,
    record_property: Callable[[str, object], None],
) -> None:
    """The package does not rely on these; they are written to the report of the tests."""
    case = Case("lstm", 4, 3, 3, 5, lengths=(4, 0, 2))
    agrees(cudnn_on_gpu, case, "float64")
    rng = np.random.default_rng(1)
    inputs, cotangents = problem(rng, case), cotangents_of(rng, case)
    right = forward(cudnn_on_gpu, case, inputs, engine=ENGINE)
    grads = backward(cudnn_on_gpu, case, inputs, right, cotangents, engine=ENGINE)
    monkeypatch.setattr(_cudnn, "_pass_through", lambda *args: None)
    out = forward(cudnn_on_gpu, case, inputs, engine=ENGINE)
    states = [np.array_equal(a, e) for a, e in zip(out[1:3], right[1:3], strict=True)]
    record_property("cuDNN keeps the states of sequences of length 0", str(states))
    xp = cudnn_on_gpu.xp
    monkeypatch.setattr(_cudnn, "_outputs", lambda shape, dtype, _: xp.full(shape, 9, dtype))
    filled = forward(cudnn_on_gpu, case, inputs, engine=ENGINE)
    record_property("cuDNN writes zeros to the padding", str((filled.output[3:, 1] == 0).all()))
    again = backward(cudnn_on_gpu, case, inputs, right, cotangents, engine=ENGINE)
    zero = (again.input_backprop[3:, 1] == 0).all()
    record_property("cuDNN writes zeros to the padding of the gradient", str(zero))
    assert_close(again.params_backprop, grads.params_backprop, "float64", "params_backprop")
    args, config = given(xp, case, "float64"), config_of(case)
    output, *_, reserve = _cudnn.forward(config, **args)
    uncopied: Any = types.SimpleNamespace(copy=lambda: reserve)
    first, second = (
        _cudnn.backward(config, *args.values(), output, output, None, None, uncopied)[3]
        for _ in range(2)
    )
    same = xp.asnumpy(first).tobytes() == xp.asnumpy(second).tobytes()
    record_property("cuDNN can go back twice on one reserve", str(same))


@pytest.mark.gpu
def test_the_layout_on_a_device(cudnn_on_gpu: Ops) -> None:
    library, handle = nine(), 0
    for case, (dtype, itemsize) in itertools.product(LAYOUTS, (("float32", 4), ("float16", 2))):
        with _cudnn._net(config_of(case), dtype, None, "sizes") as net:
            assert isinstance(net, _cudnn._Nine)
            handle = net.handle
            assert_layout(library, handle, net.rnn, case, itemsize)


@pytest.mark.gpu
def test_streams_and_threads(cudnn_on_gpu: Ops) -> None:
    case = Case("gru", 9, 4, 6, 8, 2, BI)
    results: list[Any] = [None] * 4

    def run(i: int) -> None:
        try:
            with cudnn_on_gpu.xp.cuda.Stream(non_blocking=True):
                agrees(cudnn_on_gpu, case, "float64")
        except BaseException as error:
            results[i] = error

    threads = [threading.Thread(target=run, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [None] * 4


@pytest.mark.gpu
def test_auto_is_cudnn_where_it_can(cudnn_on_gpu: Ops) -> None:
    case = Case("lstm", 3, 2, 4, 5)
    inputs = {
        n: cudnn_on_gpu.xp.asarray(a) for n, a in problem(np.random.default_rng(0), case).items()
    }
    assert cupyrnn.cudnn_rnn_engine(**inputs) == "cudnn"
    assert cupyrnn.cudnn_rnn_engine(**inputs, engine="cupy") == "cupy"
    same = Case("lstm", 3, 2, 4, 5, num_proj=5)
    inputs = {
        n: cudnn_on_gpu.xp.asarray(a) for n, a in problem(np.random.default_rng(0), same).items()
    }
    assert cupyrnn.cudnn_rnn_engine(**inputs, num_proj=5) == "cupy"
