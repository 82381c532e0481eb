"""What the tools of this package share: files written whole or not at all, and how a command ends."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Callable
from pathlib import Path

from jitload.errors import JitLoadError


def replace_file(path: Path, data: bytes) -> None:
    """Write a file whole or not at all; its directory is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".jitload-{secrets.token_hex(8)}")
    try:
        fresh.write_bytes(data)
        fresh.replace(path)
    finally:
        fresh.unlink(missing_ok=True)


def run_command(work: Callable[[], None]) -> int:
    """Run a command; return 0, or 1 for a missing file, 2 for what is not as it should be, 3 for any other file."""
    try:
        work()
    except FileNotFoundError as error:
        return _fail(error, 1)
    except JitLoadError as error:
        return _fail(error, 2)
    except OSError as error:
        return _fail(error, 3)
    return 0


def _fail(error: Exception, code: int) -> int:
    print(f"Error: {error}", file=sys.stderr)  # noqa: T201
    return code
