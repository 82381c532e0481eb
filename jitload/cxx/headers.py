"""A compiler's depfiles in, the headers that nothing in a key speaks for out."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from jitload.device.headers import read_headers, shadowing_paths, without_comments

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

_INCBIN = re.compile(r'\.incbin\b(?:[\s\\]*"([^"\\\n]+)\\?")?')  # in a string, whose quotes have a backslash


def search_dirs(dirs: Sequence[Path], flags: Sequence[str], environment: Sequence[str]) -> tuple[Path, ...]:
    """Return where a compiler looks for the user's headers, in its order: what `-I`, other options and variables name.

    Args:
        dirs: Those of `-I`.
        flags: The other options.
        environment: What the compiler reads of the environment, as `NAME=value`.
    """
    variables = dict(variable.split("=", 1) for variable in environment)
    named = {option: list(_named_by(option, flags)) for option in ("-iquote", "-isystem", "-idirafter")}
    before, behind = (
        [Path(place) for name in names for place in variables.get(name, "").split(os.pathsep)]
        for names in (("CPATH",), ("CPLUS_INCLUDE_PATH", "C_INCLUDE_PATH"))
    )
    places = (*named["-iquote"], *dirs, *before, *named["-isystem"], *behind, *named["-idirafter"])
    return tuple(dict.fromkeys(place for place in places if place.is_absolute()))


def _named_by(option: str, flags: Sequence[str]) -> Iterator[Path]:
    for place, flag in enumerate(flags, start=1):
        if flag.startswith(option):
            yield Path(flag.removeprefix(option) or "".join(flags[place : place + 1]))


def headers_to_record(
    texts: Sequence[str], read: Sequence[Path], dirs: Sequence[Path], known: Sequence[Path], *, cache_dir: Path
) -> Iterator[Path]:
    """Yield what a library depends on and no version in a key speaks for: files, and where others could appear.

    Args:
        texts: The sources.
        read: What the depfiles name.
        dirs: The user's include directories, in order.
        known: Directories whose versions are in the key, ours first.
        cache_dir: The cache, which has headers of its own.
    """
    yield from (path for path in read_headers(texts, dirs, known) if path.is_absolute())
    yield from shadowing_paths(read, (*dirs, *known[1:]) if dirs else ())
    own = tuple(unknown_headers(read, (*known, cache_dir)))
    yield from own
    yield from _taken_in([*texts, *map(_text_of, own)], dirs)


def _taken_in(texts: Iterable[str], dirs: Sequence[Path]) -> Iterator[Path]:
    """Yield the files that `.incbin` in assembly names: no depfile does. What a macro names is built each time."""
    for text in texts:
        for found in _INCBIN.finditer(without_comments(text) if ".incbin" in text else ""):
            if found[1] is None:
                yield Path("#.incbin of what no text names")
            else:
                yield from (directory / found[1] for directory in (dirs or (Path("/"),)))


def _text_of(path: Path) -> str:
    with suppress(OSError):
        return path.read_text(errors="replace")
    return ""


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
