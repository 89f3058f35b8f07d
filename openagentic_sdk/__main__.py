"""Run the command `openagentic-sdk` as `python3 -m openagentic_sdk`, without installing anything."""

import sys

from .cli.main import main

if __name__ == "__main__":
    sys.exit(main())
