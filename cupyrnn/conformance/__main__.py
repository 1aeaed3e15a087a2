"""Write the cases, or run them: python -m cupyrnn.conformance."""

import sys

from .cli import main

if __name__ == "__main__":
    sys.exit(main())
