"""What "auto" takes once kernels were timed on a GPU, and what is kept of it."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from problems import lstms

import cupyrnn
from cupyrnn.device import CELLS
from cupyrnn.driver.trial import LEAST_GAIN
from cupyrnn.kernels import choice, fit, lstm, timed
from cupyrnn.kernels.timed import Measurements, Timed
from without_a_gpu.new_process import forget

FASTEST = {
    "lstm_forward float32": [Timed(16, 4, "rows"), Timed(64, 4, "rows"), Timed(64, 64, "loop")],
    "lstm_backward float16": [Timed(64, 64, "rows")],
    "lstm_forward float64": [Timed(64, 4, "rows"), Timed(96, 4, "rows"), Timed(512, 4, "rows")],
}
CARD = "A card (R)"
MODES = set(choice._MODES) - {"auto"}


@pytest.fixture
def kept(
    cupy_on_cpu: Any, new_process: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Measurements:
    """The choice of the current device, which is kept in a folder of the test's."""
    monkeypatch.delenv("CUPYRNN_PERSISTENT", raising=False)
    monkeypatch.setenv("CUPYRNN_CACHE_DIR", str(tmp_path / "here"))
    runtime = cupy_on_cpu.cuda.runtime
    properties = {"name": CARD.encode()}
    monkeypatch.setattr(runtime, "getDeviceProperties", lambda _: properties)
    monkeypatch.setenv("CUPYRNN_TUNE", "0")
    # A default where nothing was timed is tested in test_first_use.py.
    monkeypatch.setattr(choice, "_ROWS_UP_TO", 0)
    monkeypatch.setattr(cupy_on_cpu.cuda.Device, "attributes", {"MultiProcessorCount": 132})
    path = timed.path_of(0)
    assert path is not None
    of = fit.Recurrence(lstm.FORWARD_KERNELS, np.dtype("f8"), (4, 96), 9, choice.current_device())
    wrong = choice.verdict_name(of._replace(plain=True), fit.by_mode("rows", of))
    refused = {wrong: "h is off by 3"}
    found = Measurements(path, CARD, FASTEST, refused, 132, "13000", "2026-11-28")
    timed.keep(found, path)
    timed.read_anew()
    return found


def choices(B: int, H: int, dtype: str = "float32", **device: int) -> tuple[Any, Any]:
    given: dict[str, Any] = {"batch_size": B, "num_units": H, "num_steps": 9, "dtype": dtype}
    return cupyrnn.device.recurrence_kernels("lstm", **given, **device)


def taken(B: int, H: int, dtype: str = "float32", **device: int) -> list[str]:
    """Return the kernels, forward and backward."""
    return [choice.kernel for choice in choices(B, H, dtype, **device)]


def test_nothing_is_kept_of_another_gpu(kept: Measurements) -> None:
    assert taken(4, 64) == ["rows", "loop"]
    for device in ({"processors": 132}, {"processors": 132, "architecture": 80}):
        assert taken(4, 64, **device) == ["loop"] * 2
        assert "was not timed near" in choices(4, 64, **device)[0].reason


def test_auto_takes_the_fastest_at_the_nearest_size(kept: Measurements) -> None:
    for B, H in ((4, 64), (2, 33), (7, 128), (8, 15), (3, 8)):
        assert taken(B, H) == ["hybrid" if H > 96 else "rows", "loop"], (B, H)
    for B, H in ((64, 64), (32, 100), (128, 64)):
        assert taken(B, H) == ["loop"] * 2, (B, H)
    # Too far from all that was timed: in H, in B; of another dtype or direction.
    for B, H in ((4, 7), (4, 129), (1, 64), (129, 64)):
        assert taken(B, H) == ["loop"] * 2
        assert "not timed near" in choices(B, H)[0].reason
    assert taken(4, 64, "complex64") == ["loop"] * 2
    assert taken(64, 64, "float16") == ["loop", "rows"]
    # It was timed, but does not fit: a file that was changed by hand.
    assert taken(4, 512, "float64") == ["loop"] * 2
    assert taken(0, 64) == taken(4, 0) == ["loop"] * 2


def test_a_kernel_with_wrong_values_is_not_taken(kept: Measurements) -> None:
    assert taken(4, 64, "float64") == ["rows", "loop"]
    assert taken(4, 96, "float64") == ["loop", "loop"]
    reason = choices(4, 96, "float64")[0].reason
    assert reason == "hybrid is wrong on this GPU: h is off by 3"


def test_the_reason_says_where_the_choice_comes_from(kept: Measurements) -> None:
    (forward, _), (loop, _) = choices(5, 60), choices(50, 60)
    source = f"the fastest at H = 64 and B = {{}} on {CARD}: {kept.path}"
    assert forward.reason.endswith(f"registers a thread hold the matrix; {source.format(4)}")
    assert loop.reason == source.format(64)
    assert kept.path.name.startswith("gpu-A-card-R-13000-")


@pytest.mark.parametrize("asked", ["loop", "rows"])
def test_what_is_asked_for_goes_before(
    kept: Measurements, asked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUPYRNN_PERSISTENT", asked)
    assert set(taken(64, 64)) == {asked}


@pytest.mark.parametrize("what", ["name", "driver", "kernels"])
def test_another_card_driver_or_version_has_a_choice_of_its_own(
    kept: Measurements, cupy_on_cpu: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, what: str
) -> None:
    runtime = cupy_on_cpu.cuda.runtime
    if what == "name":
        monkeypatch.setattr(runtime, "getDeviceProperties", lambda _: {"name": b"Another"})
    elif what == "driver":
        monkeypatch.setattr(runtime, "driverGetVersion", lambda: 13010)
    else:
        own = Path(timed.__file__).parent
        for page in own.glob("*.py"):
            tmp_path.joinpath(page.name).write_bytes(page.read_bytes())
        monkeypatch.setattr(timed, "__file__", str(tmp_path / "timed.py"))
        assert timed.path_of(0) == kept.path
        with tmp_path.joinpath("turns.py").open("a") as file:
            file.write("# another line")
    forget()
    assert taken(4, 64) == ["loop"] * 2
    assert "was not timed" in choices(4, 64)[0].reason


def test_what_is_kept_is_forgotten(kept: Measurements) -> None:
    assert taken(4, 64) == ["rows", "loop"]
    cupyrnn.device.forget_kernels()
    assert taken(4, 64) == ["loop"] * 2
    assert not kept.path.exists()
    cupyrnn.device.forget_kernels()


def test_nothing_is_read_where_nothing_is_to_be_kept(
    kept: Measurements, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUPYRNN_CACHE_DIR", "")
    forget()
    assert taken(4, 64) == ["loop"] * 2
    assert timed.path_of(0) is None
    cupyrnn.device.forget_kernels()
    assert kept.path.exists()


def test_the_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("CUPYRNN_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert timed.folder() == tmp_path / "cupyrnn"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert timed.folder() == tmp_path / "home" / ".cache" / "cupyrnn"


def _with(**changed: Any) -> str:
    whole = {"card": CARD, "processors": 132, "driver": "", "date": "", "fastest": {}}
    return json.dumps({**whole, "verdicts": {}, **changed})


ODD = {
    "nothing": "",
    "a brace": "{",
    "a list": "[]",
    "no card": '{"fastest": {}}',
    "deep": "[" * 200_000,
    "not UTF-8": "\udcff\udcfe{",
    "a long integer": f'{{"card": {"9" * 9000}}}',
    "card": _with(card=3),
    "fastest a list": _with(fastest=[]),
    "fastest null": _with(fastest=None),
    "too few": _with(fastest={"a": [[1]]}),
    "sizes null": _with(fastest={"a": None}),
    "verdicts a list": _with(verdicts=[1]),
    "verdicts a number": _with(verdicts={"a": 3}),
    "processors": _with(processors="many"),
} | {
    f"{one}": _with(fastest={"a": [one]})
    for one in (
        *([H, 8, "rows"] for H in (0, -1, 1.5, "a", True, None, float("nan"), 10**400)),
        *([64, 8, mode] for mode in ("hybrid", "auto", "", 3, ["rows"])),
    )
}  # fmt: skip


@pytest.mark.parametrize("text", ODD.values(), ids=[name[:20] for name in ODD])
def test_a_file_that_is_no_choice(kept: Measurements, text: str) -> None:
    kept.path.write_text(text, errors="surrogateescape")
    forget()
    message = r"gpu-.* is not a file of kernel choices .*python -m cupyrnn\.device"
    with pytest.warns(RuntimeWarning, match=message):
        assert taken(4, 64) == ["loop"] * 2
    assert taken(4, 64) == ["loop"] * 2, "one warning"
    cupyrnn.device.forget_kernels()
    assert taken(4, 64) == ["loop"] * 2


def test_what_comes_with_the_package(
    kept: Measurements, cupy_on_cpu: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was timed on a card of an architecture is known of the others of it."""
    (shipped,) = timed.of_architecture(90)
    of_calls = {n: of for n, of in shipped.fastest.items() if n.split()[0].endswith(timed.CALLS)}
    of_kernels = {name: of for name, of in shipped.fastest.items() if name not in of_calls}
    assert len(of_kernels) == 32, "four cells, two directions, four dtypes"
    for known, table in ((MODES, of_kernels), ({*timed.ENGINES}, of_calls)):
        assert {one.mode for sizes in table.values() for one in sizes} <= known
    assert not shipped.verdicts
    assert (shipped.processors, shipped.driver, shipped.date) == (132, "13.0", "2026-11-26")
    h100 = {"processors": 132, "architecture": 90}
    assert taken(16, 64, **h100) == ["rows"] * 2
    reason = choices(16, 64, **h100)[0].reason
    assert reason.endswith(f"the fastest at H = 64 and B = 16 on {shipped.card}: {shipped.path}")
    # What was not timed itself is said to be so.
    for B, H, where in ((64, 512, "as a prototype on"), (16, 512, "with an earlier grid on")):
        choice = choices(B, H, "float16", **h100)[0]
        assert choice.kernel == "grid"
        assert f"the fastest at H = {H} and B = {B} {where} an NVIDIA H" in choice.reason
    assert taken(16, 100, **h100) == ["cluster"] * 2
    # Rows, the fastest at H = 128, do not fit: what was at H = 256.
    assert taken(16, 150, "float16", **h100) == ["cluster"] * 2
    # Where blocks share the matrix, and where a batch is so large that the loop is as fast.
    for B, H, dtype, expected in (
        *((B, H, "float16", "cluster cluster") for B in (1, 32, 120) for H in (150, 200, 256)),
        *((B, H, "float32", "cluster cluster") for B in (1, 16, 32) for H in (150, 200, 256)),
        *((128, 256, "float32", "grid loop"), (256, 256, "float16", "loop loop")),
        *((16, 1024, "float16", "grid grid"), (16, 1024, "float32", "grid grid")),
        *((64, 512, "float16", "grid grid"), (64, 512, "float32", "grid loop")),
        *((256, 512, "float16", "grid grid"), (256, 512, "float32", "grid loop")),
        *((600, 512, "float16", "loop loop"), (600, 512, "float32", "loop loop")),
        *((128, 1024, "float16", "loop loop"), (1024, 512, "float16", "loop loop")),
    ):
        assert taken(B, H, dtype, **h100) == expected.split(), (B, H, dtype)
    # A card's own times go before.
    monkeypatch.setattr(cupy_on_cpu.cuda.Device, "compute_capability", "90")
    forget()
    assert taken(64, 64) == ["loop", "rows"]
    assert taken(16, 64, **h100) == taken(16, 64) == ["rows"] * 2
    cupyrnn.device.forget_kernels()
    assert taken(64, 64) == ["rows"] * 2


def test_the_table_of_a_whole_card_decides_where_as_many_launches_are_needed(
    kept: Measurements,
) -> None:
    """An H100 PCIe, an H20, and parts of an H100 have fewer multiprocessors."""
    h100 = {"architecture": 90}
    sizes = {"grid": (64, 512, "float16"), "cluster": (32, 256, "float16"), "rows": (16, 64)}
    expected = {
        132: "grid grid cluster cluster rows rows",
        114: "loop loop cluster cluster rows rows",
        78: "loop loop cluster cluster rows rows",
        60: "loop loop cluster cluster rows rows",
        16: "loop loop loop loop rows rows",
    }
    for processors, names in expected.items():
        found = [taken(*size, **h100, processors=processors) for size in sizes.values()]
        assert [kernel for two in found for kernel in two] == names.split(), processors
    reason = choices(64, 512, "float16", **h100, processors=60)[0].reason
    assert "more launches, one after the other, on this GPU's 60 multiprocessors" in reason
    # A card with more of them needs no more launches.
    assert taken(64, 512, "float16", **h100, processors=148) == ["grid"] * 2


def test_what_comes_with_the_package_was_the_fastest_on_the_device() -> None:
    """Where that was measured: eager calls of small nets say what the host needs."""
    results = Path(__file__).parents[1] / "benchmarks/results/gpu-nvidia-h100-80gb-hbm3.json"
    files = {"block_lstm": "lstm", "block_gru": "gru", **CELLS, "gru": "gru_reset_after"}
    times: Any = defaultdict(lambda: defaultdict(list))
    for row in json.loads(results.read_text())["rows"]:
        mode = "rows" if row["who"] == "hybrid" else row["who"]
        if "queued_ms" in row and mode in MODES and not row["variant"]:
            T, B, H = map(int, re.findall(r"\d+", row["shape"]))
            name = f"{files[row['cell']]}_{row['pass']} {row['dtype']}"
            times[name, H, B][mode].append(row["queued_ms"] / T)
    (shipped,) = timed.of_architecture(90)
    compared = 0
    for (name, H, B), of in times.items():
        if len(of) > 1 and len({len(found) for found in of.values()}) == 1:
            total = {mode: sum(found) for mode, found in of.items()}
            found = [t for t in shipped.fastest[name] if t[:2] == (H, B)]
            if not found or found[0].where:  # a prototype, or the grid, which was another one then
                assert "grid" in total, (name, H, B)
                continue
            mode = found[0].mode
            assert total[mode] < LEAST_GAIN * min(total.values()), (name, H, B, total)
            compared += 1
    assert compared > 57


def test_the_name_of_a_measured_kernel_is_a_mode() -> None:
    assert {t.mode for sizes in FASTEST.values() for t in sizes} <= MODES


def test_a_loop_that_is_wrong_is_not_taken_unasked(
    kept: Measurements, cupy_on_cpu: Any, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    choice.current_device()
    timed.add(0, {"loop lstm_forward float32": "h is off by 3"})
    inputs = lstms.problem(rng, (3, 2, 4, 5), True, np.dtype("float32"))
    there = {n: cupy_on_cpu.asarray(a) for n, a in inputs.items()}
    monkeypatch.setenv("CUPYRNN_PERSISTENT", "auto")
    message = "lstm_forward for float32: the loop is wrong on this GPU, h is off by 3;"
    with pytest.raises(RuntimeError, match=message):
        cupyrnn.block_lstm(**there)
    monkeypatch.setenv("CUPYRNN_PERSISTENT", "loop")
    cupyrnn.block_lstm(**there)


def test_an_op_does_as_it_was_timed(
    kept: Measurements, cupy_on_cpu: Any, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One launch where that was the fastest, with its bits, and the loop elsewhere."""
    fastest = {"lstm_forward float32": [Timed(5, 3, "rows")]}
    timed.keep(replace(kept, fastest=fastest), kept.path)
    timed.read_anew()
    start, counts = cupy_on_cpu.cuda.driver.launchKernel, []

    def counting(*args: Any) -> Any:
        counts.append(args[0])
        return start(*args)

    monkeypatch.setattr(cupy_on_cpu.cuda.driver, "launchKernel", counting)
    results = {}
    for B in (3, 17):
        inputs = lstms.problem(rng, (6, B, 4, 5), True, np.dtype("float32"))
        there = {n: cupy_on_cpu.asarray(a) for n, a in inputs.items()}
        for asked in ("auto", "rows", "loop"):
            monkeypatch.setenv("CUPYRNN_PERSISTENT", asked)
            cupyrnn.block_lstm(**there)  # the first use of a kernel is tried
            counts.clear()
            out = cupyrnn.block_lstm(**there)
            results[B, asked] = len(counts), cupy_on_cpu.asnumpy(out.h).tobytes()
    assert results[3, "auto"] == results[3, "rows"]
    assert results[17, "auto"] == results[17, "loop"]
    assert results[3, "rows"][0] < results[3, "loop"][0]
