"""Check and time the kernels of the time steps on a GPU: python -m cupyrnn.device."""

import sys

from .cli import main

if __name__ == "__main__":
    sys.exit(main())
