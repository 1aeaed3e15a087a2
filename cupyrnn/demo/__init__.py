"""The demo, ``python -m cupyrnn``: a character model, trained with the package's ops."""

from __future__ import annotations

import signal
import sys


def main(arguments: list[str] | None = None) -> int:
    """Run the command and return its exit code; a Ctrl-C may come while modules are imported."""
    try:
        from . import cli

        return cli.main(arguments)
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        return 128 + signal.SIGINT
