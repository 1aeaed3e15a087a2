"""Train a character language model made of the package's ops: python -m cupyrnn."""

import sys

from .demo import main

if __name__ == "__main__":
    sys.exit(main())
