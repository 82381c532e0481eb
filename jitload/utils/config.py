"""`jitload-config`: where the parts of this installation are that a build of a user's own needs."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from jitload import __version__
from jitload.toolchain.host import own_include_dir, tvm_ffi_include_dirs
from jitload.utils.output import run_command


def include_dirs() -> tuple[Path, ...]:
    """Return the include directories of a wrapper, in order: ours answer to tvm-ffi's names, so they come first."""
    own = own_include_dir().parent
    return (own / "upstream", own)


def cmake_dir() -> Path:
    """Return the directory of the CMake package."""
    return Path(__file__).parent.parent / "cmake"


def _flags(standard: str = "") -> str:
    words = [f"-I{path}" for path in include_dirs()]
    words += [word for path in tvm_ffi_include_dirs() for word in ("-isystem", str(path))]
    return shlex.join([*words, *([standard] if standard else [])])


_ANSWERS: dict[str, tuple[Callable[[], str], str]] = {
    "version": (lambda: __version__, "the version"),
    "cmakedir": (lambda: str(cmake_dir()), "the directory of the CMake package, for jitload_ROOT"),
    "includedir": (lambda: str(own_include_dir().parent), "the directory of <jitload/…> headers"),
    "includedirs": (
        lambda: ";".join(map(str, (*include_dirs(), *tvm_ffi_include_dirs()))),
        "all include directories of a wrapper, tvm-ffi's too, in order",
    ),
    "cxxflags": (lambda: _flags("-std=c++17"), "the C++ compiler's flags for a wrapper"),
    "cflags": (_flags, "the same for C"),
    "libs": (lambda: "-ldl -lpthread", "what a wrapper is linked with; neither CUDA nor its driver is"),
    "launcher-source": (
        lambda: str(own_include_dir() / "launcher.cc"),
        "the launcher as a source file, for wrappers compiled with -DJITLOAD_LAUNCHER_LINKED",
    ),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Print what is asked for, one line each."""
    parser = argparse.ArgumentParser(prog="jitload-config", description=__doc__)
    for name, (_, text) in _ANSWERS.items():
        parser.add_argument(f"--{name}", action="store_true", help=f"print {text}")
    given = vars(parser.parse_args(arguments))
    asked = [answer for name, (answer, _) in _ANSWERS.items() if given[name.replace("-", "_")]]
    if not asked:
        parser.print_help()

    def work() -> None:
        for answer in asked:
            print(answer())  # noqa: T201

    return run_command(work)


if __name__ == "__main__":
    sys.exit(main())
