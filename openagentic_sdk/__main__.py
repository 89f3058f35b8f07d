"""`python3 -m openagentic_sdk` is the command `openagentic-sdk`, without installing anything."""

import sys

from .cli.main import main

if __name__ == "__main__":
    sys.exit(main())
