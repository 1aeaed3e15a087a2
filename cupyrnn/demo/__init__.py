"""The main job: train a character language model made of the package's ops.

Symbols as in the ops: T time steps, B batch, I input size, H hidden size; here I is the size of
the character embedding and V the number of symbols.
"""

from __future__ import annotations

import signal


def main(arguments: list[str] | None = None) -> int:
    """Run the command and return its exit status; Ctrl-C counts from the first import on."""
    try:
        from . import cli

        return cli.main(arguments)
    except KeyboardInterrupt:
        from .output import complain

        complain("\ninterrupted")
        return 128 + signal.SIGINT
