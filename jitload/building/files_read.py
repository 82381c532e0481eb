"""Find the files that a compile read and that no version in a cache key covers, from depfiles and from the sources."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from jitload.cpptext.includes import embedded_files, read_headers, shadowing_paths

# The compiler's own headers: its version is in the key.
_COMPILER_DIRS = (Path("/usr/lib/gcc"), Path("/usr/lib/llvm"), Path("/usr/include/c++"))
_SYSTEM_DIR = "/usr/include/"
# In /usr/include: the headers of the C library and the kernel, which libc's version covers. Every other file there
# belongs to some other package.
_SYSTEM_SUBDIRS = re.compile(r"(?:[\w.]+-linux-\w+/)?(?:bits|sys|gnu|asm|asm-generic|linux|c\+\+|arpa|net|netinet)/.*")
_SYSTEM_FILES = re.compile(
    r"(?:[\w.]+-linux-\w+/)?(?:stdc-predef|features|features-time64|alloca|assert|complex|ctype|dirent|dlfcn|endian|errno"
    r"|fcntl|fenv|float|inttypes|iso646|langinfo|libintl|limits|locale|malloc|math|memory|poll|pthread|pwd|sched"
    r"|semaphore|setjmp|signal|stdint|stdio|stdlib|string|strings|syscall|time|unistd|wchar|wctype|xlocale)\.h"
)


def search_dirs(dirs: Sequence[Path], flags: Sequence[str], environment: Sequence[str]) -> tuple[Path, ...]:
    """Return the directories that a compiler searches for the user's headers, in its order.

    Args:
        dirs: The directories of `-I`.
        flags: The other options.
        environment: The environment variables that the compiler reads, as `NAME=value`.
    """
    variables = dict(variable.split("=", 1) for variable in environment)
    named = {option: list(_option_values(option, flags)) for option in ("-iquote", "-isystem", "-idirafter")}
    first, last = (
        [Path(directory) for name in names for directory in variables.get(name, "").split(os.pathsep)]
        for names in (("CPATH",), ("CPLUS_INCLUDE_PATH", "C_INCLUDE_PATH"))
    )
    searched = (*named["-iquote"], *dirs, *first, *named["-isystem"], *last, *named["-idirafter"])
    return tuple(dict.fromkeys(directory for directory in searched if directory.is_absolute()))


def _option_values(option: str, flags: Sequence[str]) -> Iterator[Path]:
    for following, flag in enumerate(flags, start=1):
        if flag.startswith(option):
            yield Path(flag.removeprefix(option) or "".join(flags[following : following + 1]))


def headers_to_record(
    texts: Sequence[str], read: Sequence[Path], dirs: Sequence[Path], known: Sequence[Path], *, cache_dir: Path
) -> Iterator[Path]:
    """Yield the paths that a library depends on and no version in a key covers: files, and where others could appear.

    Args:
        texts: The sources.
        read: The files that the depfiles name.
        dirs: The user's include directories, in order.
        known: Directories whose versions are in the key, jitload's own first.
        cache_dir: The cache, which contains generated headers.
    """
    yield from (path for path in read_headers(texts, dirs, known) if path.is_absolute())
    yield from shadowing_paths(read, (*dirs, *known[1:]) if dirs else ())
    own = tuple(unknown_headers(read, (*known, cache_dir)))
    yield from own
    yield from embedded_files([*texts, *map(_text_of, own)], dirs)


def _text_of(path: Path) -> str:
    with suppress(OSError):
        return path.read_text(errors="replace")
    return ""


def read_depfile(text: str) -> list[Path]:
    """Return the prerequisites of the make rule that a compiler wrote."""
    _, _, names = text.replace("\\\n", " ").partition(": ")
    words = re.findall(r"(?:\\.|\$\$|[^\s\\$])+", names.partition("\n")[0])
    return [Path(re.sub(r"\\([\s#\\])", r"\1", word).replace("$$", "$")) for word in words]


def unknown_headers(paths: Iterable[Path], known_dirs: Iterable[Path]) -> Iterator[Path]:
    """Yield the headers outside the known directories that belong neither to the compiler nor to the C library."""
    roots = tuple(f"{root.resolve()}/" for root in (*known_dirs, *_COMPILER_DIRS))
    real_dirs: dict[str, str] = {}  # hundreds of headers are in a dozen directories
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
