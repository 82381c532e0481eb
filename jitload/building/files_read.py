"""Find the files that a cache entry of host code depends on: files that the compiler read or could have read.

The files come from the compiler's depfiles, from the `#include` lines of the sources, and from options. Headers of
jitload, CUDA, the compiler and the C library are left out, because their versions are in the cache key.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from jitload.cpptext.includes import IncludeScan, embedded_files, shadowing_paths

_COMPILER_DIRS = (Path("/usr/lib/gcc"), Path("/usr/lib/llvm"), Path("/usr/include/c++"))
_SYSTEM_DIR = "/usr/include/"
# The headers of the C library and of Linux in /usr/include. Other files there belong to other packages.
_SYSTEM_SUBDIRS = re.compile(r"(?:[\w.]+-linux-\w+/)?(?:bits|sys|gnu|asm|asm-generic|linux|c\+\+|arpa|net|netinet)/.*")
_SYSTEM_FILES = re.compile(
    r"(?:[\w.]+-linux-\w+/)?(?:stdc-predef|features|features-time64|alloca|assert|complex|ctype|dirent|dlfcn|endian|errno"
    r"|fcntl|fenv|float|inttypes|iso646|langinfo|libintl|limits|locale|malloc|math|memory|poll|pthread|pwd|sched"
    r"|semaphore|setjmp|signal|stdint|stdio|stdlib|string|strings|syscall|time|unistd|wchar|wctype|xlocale)\.h"
)


def search_dirs(dirs: Sequence[Path], flags: Sequence[str], environment: Sequence[str]) -> tuple[Path, ...]:
    """Return the absolute directories in which a compiler searches for the user's headers, in search order.

    `dirs` are the directories of `-I`. `flags` are the compiler's other options. `environment` has the variables that
    the compiler reads, such as `"CPATH=/opt/include"`.
    """
    variables = dict(variable.split("=", 1) for variable in environment)

    def in_variables(*names: str) -> list[Path]:
        return [Path(directory) for name in names for directory in variables.get(name, "").split(os.pathsep)]

    searched = (
        *option_values("-iquote", flags),
        *dirs,
        *in_variables("CPATH"),
        *option_values("-isystem", flags),
        *in_variables("CPLUS_INCLUDE_PATH", "C_INCLUDE_PATH"),
        *option_values("-idirafter", flags),
    )
    return tuple(dict.fromkeys(directory for directory in searched if directory.is_absolute()))


def option_values(option: str, flags: Sequence[str]) -> Iterator[Path]:
    """Yield the directories in options such as `-isystem/usr/x` and `-isystem /usr/x`, where `option` is `-isystem`."""
    return map(Path, option_words(option, flags))


def option_words(option: str, flags: Sequence[str]) -> Iterator[str]:
    """Yield the values in options such as `-DA=1` and `-D A=1`, where `option` is `-D`."""
    for flag, following in zip(flags, (*flags[1:], ""), strict=False):
        if flag.startswith(option):
            yield flag.removeprefix(option) or following


def headers_to_record(
    texts: Sequence[str], read: Sequence[Path], dirs: Sequence[Path], versioned_dirs: Sequence[Path], *, cache_dir: Path
) -> Iterator[Path]:
    """Yield the files that a library depends on, including missing files that a compiler would read if they existed.

    Args:
        texts: The sources.
        read: The files that the depfiles name.
        dirs: The user's include directories, in order.
        versioned_dirs: Directories whose headers are left out, because their versions are in the cache key. The first
            is jitload's own directory of headers.
        cache_dir: The cache's directory. The generated headers in this directory are also left out.
    """
    # A depfile has the header of an `#include` of a macro, but not what `__has_include` asked for.
    headers = IncludeScan(texts, dirs).headers(versioned_dirs)
    yield from (path for path in headers if not str(path).startswith("#include"))
    yield from shadowing_paths(read, (*dirs, *versioned_dirs[1:]) if dirs else ())
    unversioned = tuple(unversioned_headers(read, (*versioned_dirs, cache_dir)))
    yield from unversioned
    yield from embedded_files([*texts, *map(_text_of, unversioned)], dirs)


def _text_of(path: Path) -> str:
    with suppress(OSError):
        return path.read_text(errors="replace")
    return ""


def read_depfile(text: str) -> list[Path]:
    """Return the prerequisites in the text of a depfile, a make rule that a compiler wrote."""
    _, _, names = text.replace("\\\n", " ").partition(": ")
    words = re.findall(r"(?:\\.|\$\$|[^\s\\$])+", names.partition("\n")[0])
    return [Path(re.sub(r"\\([\s#\\])", r"\1", word).replace("$$", "$")) for word in words]


def unversioned_headers(paths: Iterable[Path], versioned_dirs: Iterable[Path]) -> Iterator[Path]:
    """Yield the headers that are outside `versioned_dirs` and belong neither to the compiler nor to the C library."""
    roots = tuple(f"{root.resolve()}/" for root in (*versioned_dirs, *_COMPILER_DIRS))
    real_dirs: dict[str, str] = {}  # a cache: hundreds of headers are in a dozen directories
    for path in paths:
        if not path.is_absolute():
            continue
        directory, name = os.path.split(path)
        if directory not in real_dirs:
            real_dirs[directory] = os.path.realpath(directory)
        real = f"{real_dirs[directory]}/{name}"
        if not real.startswith(roots) and not _is_system_header(real):
            yield path


def _is_system_header(path: str) -> bool:
    name = path.removeprefix(_SYSTEM_DIR)
    return name != path and bool(_SYSTEM_SUBDIRS.fullmatch(name) or _SYSTEM_FILES.fullmatch(name))


def files_in_options(flags: Sequence[str]) -> Iterator[Path]:
    """Yield the files that options name by absolute path, as in `@/options` and `-Wl,--version-script=/exports`."""
    for flag in flags:
        parts = re.split("[=,@]", flag)[1:]
        yield from (Path(part) for part in parts if part.startswith("/") and Path(part).is_file())
