"""The first use of a kernel with the real CuPy: its streams, its events, its compiler."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cupyrnn.kernels import timed
from without_a_gpu.cupy_on_host.calls import calls_of
from without_a_gpu.new_process import forget

pytestmark = pytest.mark.gpu


@pytest.fixture
def first(cupy: Any, new_process: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A process that has not called anything, on a card without a table."""
    monkeypatch.delenv("CUPYRNN_PERSISTENT", raising=False)
    monkeypatch.setenv("CUPYRNN_CACHE_DIR", str(tmp_path))
    # At full size, blocks that wait for each other take long here.
    monkeypatch.setattr(timed, "MODES", ("loop", "rows"))


@pytest.mark.usefixtures("first")
@pytest.mark.parametrize("name", ["block_lstm", "block_gru", "cudnn_rnn-gru"])
def test_kernels_are_tried_and_timed(host: Any, cupy: Any, tmp_path: Path, name: str) -> None:
    """The next calls wait for nothing, and neither does the first one of the next process."""
    calls = calls_of(cupy, name, (4, 3, 4, 9))
    for call in calls:
        assert host.counted(call).synchronizations == 0
    (path,) = tmp_path.iterdir()
    found = json.loads(path.read_text())
    assert [*found["verdicts"].values()] == ["", ""]
    assert len(found["fastest"]) == 2
    forget()
    before = host.counts()
    kept = calls_of(cupy, name, (4, 3, 4, 9))[0]()
    assert (host.counts() - before).synchronizations == 0
    assert kept


@pytest.mark.usefixtures("first")
def test_a_capture_is_not_disturbed(cupy: Any, tmp_path: Path) -> None:
    arrays = calls_of(cupy, "block_lstm", (4, 3, 4, 9))[0]
    forget()
    for path in tmp_path.iterdir():
        path.unlink()
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        stream.begin_capture()
        with pytest.raises(NotImplementedError, match="cuBLAS"):
            arrays()
        assert stream.end_capture() is not None
    assert not [*tmp_path.iterdir()]
