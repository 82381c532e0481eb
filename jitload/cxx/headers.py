"""A compiler's depfiles in, the headers that nothing in a key speaks for out."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

# Where the compiler's own headers are: its version is in the key.
_COMPILER_DIRS = (Path("/usr/lib/gcc"), Path("/usr/lib/llvm"), Path("/usr/include/c++"))
_SYSTEM_DIR = "/usr/include/"
# Of /usr/include: the C library's headers and the kernel's, for which libc's version speaks. Every other file there is
# of a package of its own.
_SYSTEM_SUBDIRS = re.compile(r"(?:[\w.]+-linux-\w+/)?(?:bits|sys|gnu|asm|asm-generic|linux|c\+\+|arpa|net|netinet)/.*")
_SYSTEM_FILES = re.compile(
    r"(?:[\w.]+-linux-\w+/)?(?:stdc-predef|features|features-time64|alloca|assert|complex|ctype|dirent|dlfcn|endian|errno"
    r"|fcntl|fenv|float|inttypes|iso646|langinfo|libintl|limits|locale|malloc|math|memory|poll|pthread|pwd|sched"
    r"|semaphore|setjmp|signal|stdint|stdio|stdlib|string|strings|syscall|time|unistd|wchar|wctype|xlocale)\.h"
)


def read_depfile(text: str) -> list[Path]:
    """Return the files that a rule of a makefile, as compilers write it, depends on."""
    _, _, names = text.replace("\\\n", " ").partition(": ")
    words = re.findall(r"(?:\\.|\$\$|[^\s\\$])+", names.partition("\n")[0])
    return [Path(re.sub(r"\\([\s#\\])", r"\1", word).replace("$$", "$")) for word in words]


def unknown_headers(paths: Iterable[Path], known_dirs: Iterable[Path]) -> Iterator[Path]:
    """Yield the headers that are in none of the directories, and are not the compiler's or the C library's own."""
    roots = tuple(f"{root.resolve()}/" for root in (*known_dirs, *_COMPILER_DIRS))
    homes: dict[str, str] = {}  # hundreds of headers are in a dozen directories
    for path in paths:
        if not path.is_absolute():
            continue
        directory, name = os.path.split(path)
        if directory not in homes:
            homes[directory] = os.path.realpath(directory)
        found = f"{homes[directory]}/{name}"
        if not found.startswith(roots) and not _is_of_system(found):
            yield path


def _is_of_system(path: str) -> bool:
    name = path.removeprefix(_SYSTEM_DIR)
    return name != path and bool(_SYSTEM_SUBDIRS.fullmatch(name) or _SYSTEM_FILES.fullmatch(name))
