"""`python -m jitload`: the command `jitload`."""

from __future__ import annotations

import sys

from jitload.cli import main

if __name__ == "__main__":
    sys.exit(main())
