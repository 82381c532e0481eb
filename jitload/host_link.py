"""The link options of hand-written C++ in: which of them can be used here, and the libraries that they name, out."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from jitload.toolchain import Compiler


def present_libraries(flags: Sequence[str], compiler: Compiler) -> tuple[str, ...]:
    """Drop `-lcuda` and `-lcudart` where there is no such library: nothing of ours needs them."""
    return tuple(flag for flag in flags if flag not in ("-lcuda", "-lcudart") or _can_link(flag, flags, compiler))


def _can_link(library: str, flags: Sequence[str], compiler: Compiler) -> bool:
    search = [flag for at, flag in enumerate(flags) if flag.startswith("-L") or flags[max(at - 1, 0)] == "-L"]
    command = [*compiler.command, "-shared", "-nostartfiles", *search, library, "-o", "/dev/null"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def libraries_given(flags: Sequence[str]) -> Iterator[Path]:
    """Yield the files that link options name, by their paths or as `-l` in a directory given with `-L`."""
    places = [flag[2:] or flags[at + 1] for at, flag in enumerate(flags) if flag.startswith("-L") and flag != flags[-1]]
    places += [flag[2:] for flag in flags[-1:] if len(flag) > 2 and flag.startswith("-L")]
    for flag in flags:
        names = (f"lib{flag[2:]}.so", f"lib{flag[2:]}.a") if flag.startswith("-l") else ()
        paths = (Path(flag), *(Path(place, name) for place in places for name in names))
        yield from (path for path in paths if path.is_absolute() and (names or path.is_file()))
