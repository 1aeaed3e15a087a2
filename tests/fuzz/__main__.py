"""Run the fuzzer for some time, or repeat one case."""

from __future__ import annotations

import argparse
import faulthandler
import importlib.util
import sys
import tempfile
import traceback
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from checks import poisoned

import cupyrnn
import fuzz
from fuzz import guard_pages, sharing


def main() -> int:
    parser = argparse.ArgumentParser(description="Random calls of every public function.")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--calls", type=int, default=10**9, help="as many of each thread at most")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--case", type=int, help="only this one")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--function", help="only this one")
    parser.add_argument("--guard", action="store_true", help="arrays beside pages without rights")
    options = parser.parse_args()
    every = [*fuzz.FUNCTIONS]
    names = [options.function] if options.function else every
    faulthandler.enable()
    # Compile everything before a warning of the compiler would count.
    for dtype in ("f4", "f8"):
        x = np.zeros((2, 1, 1), dtype)
        cupyrnn.block_lstm(x, x[0], x[0], np.zeros((2, 4), dtype), np.zeros(4, dtype))
    if any(m.startswith("cupyrnn.compiled.") for m in sys.modules):
        sharing.share_all_work()
    if options.guard:
        with tempfile.TemporaryDirectory() as folder:
            guard_pages.install(folder)
    if importlib.util.find_spec("torch") is not None:
        importlib.import_module("cupyrnn.torch")
    warnings.simplefilter("error")
    np.empty = poisoned(np.empty)
    try:
        if options.case is not None:
            fuzz.check_case(options.seed, options.case, names)
            done = [1]
        elif options.threads == 1:  # the main one, which can be interrupted
            cases = range(options.calls)
            done = [fuzz.run(options.seconds, options.seed, cases, names, options.guard)]
        else:
            with ThreadPoolExecutor(options.threads) as pool:
                jobs = [
                    pool.submit(
                        fuzz.run,
                        options.seconds,
                        options.seed,
                        range(n, n + options.threads * options.calls, options.threads),
                        names,
                    )
                    for n in range(options.threads)
                ]
                done = [job.result() for job in jobs]
    except fuzz.Failure:
        traceback.print_exc()
        return 1
    faulthandler.cancel_dump_traceback_later()
    loops = "Numba's" if any(m.startswith("cupyrnn.compiled.") for m in sys.modules) else "NumPy's"
    print(f"{sum(done)} calls of {len(names)} functions, {loops} loops: all as promised")
    return 0


if __name__ == "__main__":
    sys.exit(main())
