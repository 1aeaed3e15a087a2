"""Time the frameworks beside cupyrnn once, for readers of notebook 5 who have not got them.

    python -m pip install -e '.[notebooks,numba,oracle]'
    python notebooks/data/make_framework_times.py

writes framework_times.json beside this file: `about`, with the machine, the date and the versions,
and `times`, rows of (T, B, H) and the milliseconds of each implementation's forward and backward.
Everything else that the machine does should be stopped while this runs.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from pathlib import Path
from typing import Any

os.environ["CUPYRNN_NUMBA"] = "0"
os.environ["CUDA_VISIBLE_DEVICES"] = ""
sys.path.insert(0, str(Path(__file__).parents[1]))

import lab
import numba
import numpy as np
import speed

import cupyrnn

PATH = Path(__file__).with_name("framework_times.json")


def main() -> None:
    implementations = {"block_lstm": speed.block_lstm, "cudnn_rnn": speed.cudnn_rnn}
    implementations |= speed.frameworks()
    lab.one_thread()
    times = speed.measure(implementations, repeats=25)
    speed.add_numba(times)
    modules: dict[str, Any] = {"cupyrnn": cupyrnn, "NumPy": np, "Numba": numba}
    modules |= {"PyTorch": sys.modules["torch"], "TensorFlow": sys.modules["tensorflow"]}
    about = {
        "machine": lab.device(),
        "date": time.strftime("%Y-%m-%d"),
        "versions": {"Python": platform.python_version()}
        | {name: module.__version__ for name, module in modules.items()},
    }
    rows = []
    for shape, best in times.items():
        rounded = {name: [round(ms, 3) for ms in took] for name, took in best.items()}
        rows.append(f"  {json.dumps([shape, rounded])}")
    joined = ",\n".join(rows)
    PATH.write_text(f'{{"about": {json.dumps(about, indent=1)},\n "times": [\n{joined}\n]}}\n')
    speed.print_table(times)


if __name__ == "__main__":
    main()
