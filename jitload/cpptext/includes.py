"""Find the headers and other files that C++ text includes.

NVRTC has no option that lists the headers it reads. (From 13.0 on, its time trace lists them, but NVRTC 13.4 crashes
the process at the second or third compilation with a time trace.) So every `#include` of the text is followed, and a
cache entry records the files. A superfluous file only costs a build, but a missing file gives stale code.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path

from jitload.cpptext.lexer import read_header, strip_comments
from jitload.cpptext.preprocessor import HEADER_NAME, INCLUDES, Directive, Macros, header_directives, read_directives

# Matches header names in a condition. Each may be the argument of `__has_include`, or of a macro that contains it.
_NAME_IN_CONDITION = r'"[^"\s]+"|<[^<>\s&|]+>'
_HAS_INCLUDE = r'__has_include(?:_next)?[ \t]*\([ \t]*("[^"\n]+"|<[^>\n]+>)'
_HAS_INCLUDE_MACRO = r"__has_include(?:_next)?[ \t]*\([ \t]*([A-Za-z_]\w*)"
_SYSTEM_DIR = r"/usr/(?:include|lib)\w*/"  # also matches in a compiler's sysroot
_PREDEFINED = r"\b__\w+"  # a macro that the compiler itself may define
_ANGLED_INCLUDE = r"\s*#[ \t]*include[ \t]*<([^>\n]+)>\s*"
_INCBIN = r'\.incbin\b(?:[\s\\]*"([^"\\\n]+)\\?")?'  # in a string literal, a backslash precedes a quote


def shadowing_paths(read: Iterable[Path], include_dirs: Sequence[Path]) -> Iterator[Path]:
    """Yield the paths in earlier include directories where a new header would hide a header in `read`."""
    roots = [f"{str(directory).rstrip('/')}/" for directory in include_dirs]
    for path in map(str, read):
        for index, root in enumerate(roots):
            if path.startswith(root):
                yield from (Path(before + path[len(root) :]) for before in roots[:index])


def embedded_files(texts: Iterable[str], include_dirs: Sequence[Path]) -> Iterator[Path]:
    """Yield the files that `.incbin` in assembly may embed. Depfiles do not list these files.

    If a macro makes a file's name, yield a path that cannot exist. A cache entry with this path is never used again.
    """
    for text in texts:
        for match in re.finditer(_INCBIN, strip_comments(text) if ".incbin" in text else ""):
            if match[1] is None:
                yield Path("#.incbin of a name that no text has")
            else:
                yield from (directory / match[1] for directory in (include_dirs or (Path("/"),)))


def opening_includes(text: str) -> Iterator[str]:
    """Yield the names of the headers in `#include <…>` lines before any other code or directive."""
    for line in strip_comments(text).split("\n"):
        if include := re.fullmatch(_ANGLED_INCLUDE, line):
            yield include[1]
        elif line.strip():
            return


def with_headers(text: str, macros: Iterable[str], include_dirs: Sequence[Path], known_dirs: Sequence[Path]) -> str:
    """Return macros such as `A=1` as `#define` lines, a text, and the headers outside the known directories."""
    text = "".join(f"#define {macro.replace('=', ' ', 1)}\n" for macro in macros) + text
    headers = IncludeScan([text], include_dirs).headers(known_dirs)
    return "\n".join((text, *(path.read_text(errors="replace") for path in headers if path.is_file())))


def tested_names(text: str) -> tuple[set[str], set[str]]:
    """Return the names that conditions test, also through macros of the text, and the headers in `__has_include`."""
    directives = [*read_directives(text)]
    conditions = "\n".join(rest for name, rest in directives if name.lstrip("el").startswith("if"))
    names = {*re.findall(r"\b[A-Za-z_]\w*", conditions)}
    macros = [re.findall(r"\b[A-Za-z_]\w*", rest) for name, rest in directives if name == "define"] if names else []
    while added := {word for macro in macros if names & {*macro[:1]} for word in macro} - names:
        names |= added
    return names, {header[1:-1] for header in re.findall(_HAS_INCLUDE, conditions)}


class IncludeScan:
    """The headers that a compilation of texts may read, directly or through other headers.

    Among them are:

    - Headers in `__has_include` and in branches that are never compiled.
    - Paths where no file exists. A new header at such a path might be read instead of another one.
    - Each `#include` or `__has_include` of a macro that no text defines, or that has parameters, as a path. A cache
      entry with such a path is never used again.
    """

    def __init__(self, texts: Sequence[str], include_dirs: Sequence[Path]) -> None:
        """Read the texts. Options that define macros are texts, too, of `#define` lines."""
        self._paths: set[str] = set()  # existing and missing files, and `#include`s that cannot be resolved
        self._dirs = [os.path.join(os.getcwd(), directory) for directory in include_dirs]
        self._files_read: set[str] = set()
        self._macros = Macros()
        # Header names, and macros that stand for header names, each with the directory of the file that contains it.
        self._names: list[tuple[str, str]] = []
        self._quoted_names: set[tuple[str, str]] = set()
        self._macro_includes: list[tuple[str, str]] = []
        self._macro_questions: list[tuple[str, str]] = []
        for text in texts:
            self._read(read_directives(text), "")
        self._follow()

    def headers(self, known_dirs: Sequence[Path]) -> tuple[Path, ...]:
        """Return the paths outside the known directories, whose versions are in the cache key, sorted."""
        roots = tuple(f"{root}/" for root in known_dirs)
        return tuple(sorted(Path(path) for path in self._paths if not path.startswith(roots)))

    def quoted_files(self, names: Collection[str]) -> frozenset[str]:
        """Return the names in `names` for which an `#include "name"` in the texts may read a file of the user.

        A file in a system directory is not the user's, even if this directory is an include directory. An `#include` of
        an unknown macro may read any file.
        """
        homes = {home for text, home in self._macro_includes if not self._is_resolved(text)}
        pairs = [pair for pair in self._quoted_names if pair[0] in names]
        pairs += ((name, home) for home in homes for name in names)
        return frozenset(name for name, home in pairs if any(map(_is_users_file, self._candidate_paths(name, home))))

    def _read(self, directives: Iterable[Directive], home: str) -> None:
        """Read the directives of a text. `home` is the directory of the text's file, or "" if there is no file."""
        for directive in dict.fromkeys(directives):
            self._take(directive, home)

    def _take(self, directive: Directive, home: str) -> None:
        name, text = directive
        if name == "define":
            self._macros.follow(directive, is_certain=False)
        elif name in INCLUDES and text:
            (self._names if re.match(HEADER_NAME, text) else self._macro_includes).append((text, home))
        elif name in ("if", "elif"):
            self._names += [(header, home) for header in re.findall(_NAME_IN_CONDITION, text)]
            self._macro_questions += [(macro, home) for macro in re.findall(_HAS_INCLUDE_MACRO, text)]
        if "__has_include" in text:
            self._names += [(header, home) for header in re.findall(_HAS_INCLUDE, text)]

    def _follow(self) -> None:
        """Look up headers until no new ones are found. A header may define macros that stand for other header names."""
        expanded: set[tuple[str, str]] = set()
        while True:
            while self._names:
                text, home = self._names.pop()
                if name := re.match(HEADER_NAME, text):
                    if name[1]:
                        self._quoted_names.add((name[1], home))
                    self._find(name[1] or name[2], home if name[1] else "")
            self._names = [name for name in self._expanded_names() if name not in expanded]
            if not self._names:
                break
            expanded.update(self._names)
        for directive, macros in (("include", self._macro_includes), ("__has_include", self._macro_questions)):
            self._paths.update(f"#{directive} {text}" for text, _ in macros if not self._is_resolved(text))

    def _expanded_names(self) -> Iterator[tuple[str, str]]:
        """Yield (name, directory) pairs for macros in `#include` and `__has_include` that expand to header names.

        The directory is that of the file with the `#include` or `__has_include`.
        """
        for text, home in dict.fromkeys((*self._macro_includes, *self._macro_questions)):
            names = self._macros.expansions(text) or ()
            yield from ((name, home) for name in names if re.fullmatch(HEADER_NAME, name))

    def _is_resolved(self, text: str) -> bool:
        """Return whether each expansion of a text is a header name, without a macro that the compiler may predefine."""
        names = self._macros.expansions(text) or [""]
        return all(re.fullmatch(HEADER_NAME, name) and not re.search(_PREDEFINED, name) for name in names)

    def _find(self, name: str, home: str) -> None:
        """Record the paths where a header may be, and read the files that exist there."""
        for path in self._candidate_paths(name, home):
            if path in self._paths:
                continue
            self._paths.add(path)
            real = os.path.realpath(path) if os.path.isfile(path) else ""
            # Each file is read only once, because headers that include each other as `a/../x.h` get ever longer paths.
            if real and real not in self._files_read:
                self._files_read.add(real)
                self._read(header_directives(read_header(path)), os.path.dirname(path))

    def _candidate_paths(self, name: str, home: str) -> list[str]:
        directories = (*((home,) if home else ()), *self._dirs, *(("/",) if name.startswith("/") else ()))
        return [os.path.join(directory, name) for directory in directories]


def _is_users_file(path: str) -> bool:
    return os.path.isfile(path) and not re.search(_SYSTEM_DIR, os.path.normpath(path))
