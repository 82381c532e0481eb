"""What the tools of this package share: files written whole or not at all, and how a command ends."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from jitload.errors import JitLoadError


def replace_file(path: Path, data: bytes) -> None:
    """Write a file whole or not at all; its directory is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise


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
