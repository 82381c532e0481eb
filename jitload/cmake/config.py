"""The command `jitload-config`: print where this installation has what a build system needs."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from jitload import __version__
from jitload.toolchain.host import INCLUDE_DIR, tvm_ffi_include_dirs
from jitload.utils.embed_cubin import run_command


def include_dirs() -> tuple[Path, ...]:
    """Return the include directories for C and C++ code that uses jitload's headers, in search order.

    Headers in the first directory replace tvm-ffi's headers of the same names.
    """
    return (INCLUDE_DIR / "upstream", INCLUDE_DIR)


def cmake_dir() -> Path:
    """Return the directory of the CMake package."""
    return Path(__file__).parent


def _compiler_flags(*standard: str) -> str:
    flags = [f"-I{path}" for path in include_dirs()]
    flags += [flag for path in tvm_ffi_include_dirs() for flag in ("-isystem", str(path))]
    return shlex.join([*flags, *standard])


# For each option, a function that returns the line to print, and the option's description.
_OPTIONS: dict[str, tuple[Callable[[], str], str]] = {
    "version": (lambda: __version__, "the version"),
    "cmakedir": (lambda: str(cmake_dir()), "the directory of the CMake package, for jitload_ROOT"),
    "includedir": (lambda: str(INCLUDE_DIR), "the directory of <jitload/…> headers"),
    "includedirs": (
        lambda: ";".join(map(str, (*include_dirs(), *tvm_ffi_include_dirs()))),
        "all include directories of a wrapper in order, including those of tvm-ffi",
    ),
    "cxxflags": (lambda: _compiler_flags("-std=c++17"), "the flags that compile a wrapper in C++"),
    "cflags": (_compiler_flags, "the flags that compile a wrapper in C"),
    "libs": (lambda: "-ldl -lpthread", "the libraries that a wrapper is linked with; CUDA is not among them"),
    "launcher-source": (
        lambda: str(INCLUDE_DIR / "jitload" / "launcher.cc"),
        "the launcher as a source file, for wrappers compiled with -DJITLOAD_LAUNCHER_LINKED",
    ),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a line for each option that was passed, such as a path for `--cmakedir`, and return the exit code."""
    parser = argparse.ArgumentParser(prog="jitload-config", description=__doc__)
    for name, (_, description) in _OPTIONS.items():
        parser.add_argument(f"--{name}", action="store_true", help=f"print {description}")
    options = vars(parser.parse_args(arguments))
    selected = [answer for name, (answer, _) in _OPTIONS.items() if options[name.replace("-", "_")]]
    if not selected:
        parser.print_help()

    def print_answers() -> None:
        for answer in selected:
            print(answer())

    return run_command(print_answers)


if __name__ == "__main__":
    sys.exit(main())
