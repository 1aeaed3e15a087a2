"""Build the simulator, run the kernels on it, write the table: see ``__init__.py``."""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).parent
RESULTS = HERE.parents[1] / "benchmarks" / "results" / "simulated.md"
COMMIT = "667834cf"
MODEL = "SM75_RTX2060"
# Of the model, what is changed, with the reason.
CHANGES = {
    r"^-gpgpu_kernel_launch_latency .*": "-gpgpu_kernel_launch_latency 0",  # a kernel's own cycles
    # The shuffle has no entry in the lists, and reads what lies behind.
    r"^(-ptx_opcode_latency_int \d+,\d+,\d+,\d+,\d+)$": r"\1,21",
    r"^(-ptx_opcode_initiation_int \d+,\d+,\d+,\d+,\d+)$": r"\1,4",
    # Microbenchmarks of Turing have 19 to 22 from issue to use; the rest is the simulator's path.
    r"^-gpgpu_smem_latency .*": "-gpgpu_smem_latency 18",
    # As much as a block of Volta may have, for the hybrid, of as much as L1 and it have together.
    r"^-gpgpu_unified_l1d_size .*": "-gpgpu_unified_l1d_size 128",
    r"^-gpgpu_shmem_per_block .*": "-gpgpu_shmem_per_block 98304",
    r"^-gpgpu_shmem_size .*": "-gpgpu_shmem_size 98304",
    r"^-gpgpu_shmem_sizeDefault .*": "-gpgpu_shmem_sizeDefault 98304",
    r"^-gpgpu_shmem_option .*": "-gpgpu_shmem_option 32,64,96",
    r"^-enable_ptx_file_line_stats .*": "-enable_ptx_file_line_stats 0",  # writes a file
}
# All that it asks of an nvcc is the version, and of a header this type.
NVCC = "#!/bin/sh\necho 'Cuda compilation tools, release 11.8, V11.8.89'\n"
PROFILER = "typedef enum { CU_OUT_KEY_VALUE_PAIR, CU_OUT_CSV } CUoutput_mode;\n"
STEPS = (4, 16)
LIMIT = 240  # seconds for a case of so many steps
CELLS = ("lstm", "gru_reset_after", "gru", "simple_rnn")


class Case(NamedTuple):
    """A line of the table."""

    cell: str
    dtype: str
    way: str
    B: int
    H: int
    processors: int


CASES = [
    *(Case(cell, "float32", "rows", 1, H, 1) for H in (64, 128) for cell in CELLS),
    *(Case(cell, "float32", "rows", 16, 32, 4) for cell in CELLS),
    *(Case(cell, "float64", "rows", 1, 32, 1) for cell in CELLS),
    Case("lstm", "float32", "loop", 16, 32, 4),
    Case("lstm", "float32", "rows", 2, 128, 1),
    Case("lstm", "float32", "rows", 4, 96, 1),
    Case("lstm", "float32", "rows", 16, 64, 4),
]


def toolkit(checkout: Path, wheels: Path) -> Path:
    """Put together what the simulator expects of a CUDA toolkit."""
    folder = checkout / "cuda"
    for name in ("bin", "include", "lib64"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for include in wheels.glob("nvidia/*/include"):
        shutil.copytree(include, folder / "include", dirs_exist_ok=True)
    (folder / "include" / "cudaProfiler.h").write_text(PROFILER)
    shutil.copy(next(wheels.glob("nvidia/*/bin/ptxas")), folder / "bin")
    (folder / "bin" / "nvcc").write_text(NVCC)
    for program in (folder / "bin").iterdir():
        program.chmod(0o755)
    return folder


def build(checkout: Path, cuda: Path) -> Path:
    """Return the library, built with the patch."""
    patch = ["git", "apply", str(HERE / "gpgpu_sim.patch")]
    known = subprocess.run([*patch, "--reverse", "--check"], cwd=checkout, capture_output=True)
    if known.returncode:
        subprocess.run(patch, cwd=checkout, check=True)
    # Not in a pipe: the script sets variables.
    command = (
        ". ./setup_environment release > environment.log && exec nice make -j1 > make.log 2>&1"
    )
    environment = {**os.environ, "CUDA_INSTALL_PATH": str(cuda)}
    subprocess.run(["bash", "-c", command], cwd=checkout, env=environment, check=True)
    return next(checkout.glob("lib/*/*/release/libcudart.so"))


def configure(folder: Path, checkout: Path, processors: int) -> None:
    """Write the model's configuration, with as many multiprocessors as blocks need."""
    shutil.copytree(checkout / "configs" / "tested-cfgs" / MODEL, folder, dirs_exist_ok=True)
    path = folder / "gpgpusim.config"
    text = path.read_text()
    clusters = {r"^-gpgpu_n_clusters .*": f"-gpgpu_n_clusters {processors}"}
    for old, new in {**CHANGES, **clusters}.items():
        text, found = re.subn(old, new, text, flags=re.M)
        if not found:
            raise ValueError(f"{path} has no {old}")
    path.write_text(text)


def run(case: Case, steps: int, checkout: Path, library: Path) -> dict[str, Any]:
    """Return what a case gives for so many steps."""
    environment = {
        **os.environ,
        **{"SIMULATOR": str(library), "GPGPUSIM_ROOT": str(checkout), "GPGPUSIM_CONFIG": "x"},
        **{"CUDA_INSTALL_PATH": str(checkout / "cuda"), "SIM_FORWARDING": "1"},
        **{"PTXAS_CUDA_INSTALL_PATH": str(checkout / "cuda"), "OPENBLAS_NUM_THREADS": "1"},
        # It reads a bool into an int, of which the rest is what malloc gave: have it give zeros.
        "MALLOC_PERTURB_": "255",
    }
    given = [*case[:-1], steps, case.processors]
    with tempfile.TemporaryDirectory() as name:
        configure(Path(name), checkout, case.processors)
        command = [sys.executable, str(HERE / "case.py"), *map(str, given)]
        done = subprocess.run(
            command, cwd=name, env=environment, capture_output=True, text=True, errors="replace",
            stdin=subprocess.DEVNULL, timeout=LIMIT,
        )  # fmt: skip
    found = re.search(r"^RESULT (.*)", done.stdout, re.M)
    if found is None:
        raise RuntimeError(f"{case}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    return json.loads(found[1])  # type: ignore[no-any-return]


def line(case: Case, checkout: Path, library: Path) -> str:
    """Return a case as a line of the table."""
    of = f"{case.cell}, {case.way}"
    try:
        few, many = (run(case, steps, checkout, library) for steps in STEPS)
    except subprocess.TimeoutExpired:
        return _row(of, case, "–", *["–"] * 4, f"longer than {LIMIT // 60} minutes: not run")
    cells = []
    for direction in ("forward", "backward"):
        cycles = [found[direction]["cycles"] for found in (few, many)]
        each = (cycles[1] - cycles[0]) / (STEPS[1] - STEPS[0])
        cells += [f"{each:,.0f}", f"{cycles[0] - STEPS[0] * each:,.0f}"]
    kernels = ", ".join(f"`{many[d]['names'][0]}`" for d in ("forward", "backward"))
    return _row(of, case, f"{many['error']:.1e}", *cells, kernels)


def _row(of: str, case: Case, *cells: str) -> str:
    return "| " + " | ".join(map(str, (of, case.dtype, case.B, case.H, *cells))) + " |"


HEAD = f"""Simulated by GPGPU-Sim {COMMIT}, model {MODEL}: no number here is a GPU's.
`tests/without_a_gpu/simulator` wrote this table.

The cycles of a step, forward and backward, and those of a launch beside its steps ("start"), are
simulated: the difference of {STEPS[1]} and {STEPS[0]} steps. The error is the largest one beside
NumPy in float64, of all results of the op and its gradient at {STEPS[1]} steps, over the largest
number of a result. Of the loop the kernels between the products are simulated, the products are
not.

The model is that of an RTX 2060 with as many multiprocessors as there are blocks. What is changed
in it: no latency of a launch; entries for the shuffle, which the lists of latencies lack; shared
memory of 96 KB, of 128 KB with L1, read in 18 cycles in place of 30; results of arithmetic
forwarded to who waits for them; all 64 bits of `bfi.b64`. NVRTC's PTX is put in an order that hides
latency, with predicates in place of branches around a few instructions, as ptxas would do; machine
code is not simulated. The simulator's authors publish errors of 10 to 30 % for other kernels. These
wait for latency, so trust ratios only. It knows no `mma.sync.m16n8k16`: tiles are not here. Left
out, as they take many minutes each: 16 sequences above H = 64, and float64 above H = 32.

| simulated cell, way | dtype | B | H | error | forward | start | backward | start | kernels |
|---|---|---|---|---|---|---|---|---|---|
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("wheels", type=Path)
    parser.add_argument("--at-once", type=int, default=1)
    given = parser.parse_args()
    checkout = given.checkout.resolve()
    library = build(checkout, toolkit(checkout, given.wheels.resolve()))
    with ThreadPoolExecutor(given.at_once) as pool:
        lines = pool.map(lambda case: line(case, checkout, library), CASES)
        text = HEAD
        for found in lines:
            print(found, flush=True)
            text += found + "\n"
            RESULTS.write_text(text)


if __name__ == "__main__":
    main()
