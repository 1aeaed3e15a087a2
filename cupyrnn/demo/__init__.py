"""`python -m cupyrnn`: train a character language model with the package's ops.

Symbols as in the ops: T time steps, B batch, I input size (here of the character embedding),
H hidden size, and V, the number of symbols.
"""

from __future__ import annotations

import signal


def main(arguments: list[str] | None = None) -> int:
    """Run the command and return its exit status; Ctrl-C during the imports ends it, too."""
    try:
        from . import cli

        return cli.main(arguments)
    except KeyboardInterrupt:
        from .output import complain

        complain("\ninterrupted")
        return 128 + signal.SIGINT
