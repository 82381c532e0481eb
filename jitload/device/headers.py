"""Which headers of the user's a device compile may read: every `#include` of the text is followed.

NVRTC has no option that lists them. Its time trace does, from 13.0 on, but 13.4 crashes the process at the second or
third compile that has one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

_DIRECTIVE = r"^[ \t]*#[ \t]*"
_INCLUDE = re.compile(_DIRECTIVE + r"(?:include_next|include|import)\b[ \t]*([^\s/].*?)[ \t]*$", re.MULTILINE)
_DEFINE = re.compile(_DIRECTIVE + r"define[ \t]+(\w+)(?:\(([^)\n]*)\))?[ \t]+(.*?)[ \t]*$", re.MULTILINE)
_CONDITION = re.compile(_DIRECTIVE + r"(?:el)?if\b(.*)$", re.MULTILINE)
_ASKED = re.compile(r'"[^"\s]+"|<[^<>\s&|]+>')  # in a condition, what `__has_include` or a macro around it may ask for
_HAS_INCLUDE = re.compile(r'__has_include(?:_next)?[ \t]*\([ \t]*("[^"\n]+"|<[^>\n]+>)')
_ASKED_BY_MACRO = re.compile(r"__has_include(?:_next)?[ \t]*\([ \t]*([A-Za-z_]\w*(?:[ \t]*\([^()]*\))?)[ \t]*\)")
_NAME = re.compile(r'"([^"]+)"|<([^>]+)>')
_MACRO = re.compile(r"(\w+)[ \t]*(?:\(([^)]*)\))?")
_DEEPEST = 8  # macros in macros
# Comments, and before them what may hold their signs without being one: names of headers, strings, numbers.
_COMMENT = re.compile(
    r"""(?<=include)[ \t]*<[^>\n]*>
    | R"([^()\\\s]{0,16})\(.*?\)\1" | "(?:\\.|[^"\\\n])*" | '(?:\\.|[^'\\\n])*' | (?<!\w)\d(?:'?[\w.])*
    | (?P<comment>//[^\n]*|/\*.*?(?:\*/|\Z))""",
    re.DOTALL | re.VERBOSE,
)


def read_headers(texts: Sequence[str], include_dirs: Sequence[Path], own: Sequence[Path]) -> tuple[Path, ...]:
    """Return the headers that a compile of the texts may read outside the directories in `own`, sorted.

    With them come the paths that were looked at before and do not exist: a header that appears there would be read
    instead. Dead branches and `__has_include` count too: rather too many than too few. An `#include` of a macro that
    no text explains comes as it stands, so that what is built is not found again.

    Args:
        texts: The source, and the macros given by options as `#define` lines.
        include_dirs: The user's include directories, in order.
        own: Directories of headers whose versions are in the key already.
    """
    scan = _Scan(include_dirs)
    for text in texts:
        scan.read(text, None)
    scan.follow()
    return tuple(sorted(path for path in scan.found if not any(path.is_relative_to(root) for root in own)))


def without_comments(text: str) -> str:
    """Return C++ without its comments."""
    return _COMMENT.sub(lambda found: " " if found["comment"] else found[0], text)


def shadowing_paths(read: Iterable[Path], include_dirs: Sequence[Path]) -> Iterator[Path]:
    """Yield where a header could appear and be read instead of one that was: in the directories before its own."""
    roots = [f"{str(directory).rstrip('/')}/" for directory in include_dirs]
    for path in map(str, read):
        for place, root in enumerate(roots):
            if path.startswith(root):
                yield from (Path(before + path[len(root) :]) for before in roots[:place])


class _Scan:
    """The texts read so far: the files they name, their macros, and what is to be looked at with those."""

    def __init__(self, include_dirs: Sequence[Path]) -> None:
        self.include_dirs = include_dirs
        self.found: set[Path] = set()
        self._read: set[Path] = set()
        self._macros: dict[str, list[tuple[list[str], str]]] = {}
        self._waiting: list[tuple[str, Path | None]] = []  # what stands behind `#include`, and where
        self._asked: list[tuple[str, Path | None]] = []  # macros that conditions ask `__has_include` for

    def read(self, text: str, home: Path | None) -> None:
        text = without_comments(text.replace("\r\n", "\n").replace("\\\n", ""))
        conditions = "\n".join(_CONDITION.findall(text))
        asked = _ASKED.findall(conditions)
        self._asked += [(target, home) for target in dict.fromkeys(_ASKED_BY_MACRO.findall(conditions))]
        targets = (*_INCLUDE.findall(text), *asked, *_HAS_INCLUDE.findall(text))
        self._waiting += [(target, home) for target in dict.fromkeys(targets)]
        for name, parameters, body in _DEFINE.findall(text):
            self._macros.setdefault(name, []).append(([p.strip() for p in parameters.split(",")], body))

    def follow(self) -> None:
        """Read what the texts include, those that are named by macros last: their definitions may stand anywhere."""
        computed: list[tuple[str, Path | None]] = []
        while self._waiting or computed or self._asked:
            if not self._waiting:
                asked = [(name, home) for target, home in self._asked for name in self._expand(target, _DEEPEST)]
                named = [(name, home) for target, home in computed for name in self._expand(target, _DEEPEST)]
                # A question about a macro that no text explains is one of a branch that is dead, or an error.
                self._waiting = named + [(name, home) for name, home in asked if not name.startswith("#")]
                self._asked, computed = [], []
                continue
            target, home = self._waiting.pop()
            if name := _NAME.match(target):
                self._find(name[1] or name[2], home if name[1] else None)
            elif target.startswith("#"):
                self.found.add(Path(target))
            else:
                computed.append((target, home))

    def _find(self, name: str, home: Path | None) -> None:
        for directory in (*((home,) if home else ()), *self.include_dirs, *((Path("/"),) if name[0] == "/" else ())):
            path = (directory / name).absolute()
            self.found.add(path)
            if os.path.isfile(path) and path.resolve() not in self._read:  # resolved: `a/../a/../x.h` has no end
                self._read.add(path.resolve())
                self.read(path.read_text(errors="replace"), path.parent)

    def _expand(self, target: str, depth: int) -> Iterator[str]:
        """Yield what a macro may stand for: `"a.h"`, or `#include MACRO` where nobody says."""
        call = _MACRO.match(target)
        definitions = self._macros.get(call[1], []) if call and depth else []
        if not definitions:
            yield f"#include {target}"
        for parameters, body in definitions:
            arguments = [argument.strip() for argument in (call[2] if call and call[2] else "").split(",")]
            for parameter, argument in zip(parameters, arguments, strict=False):
                if parameter:
                    body = _substitute(body, parameter, argument)  # noqa: PLW2901  one parameter after the other
            if _NAME.match(body):
                yield body
            else:
                yield from self._expand(body, depth - 1)


def _substitute(body: str, parameter: str, argument: str) -> str:
    body = re.sub(rf"#[ \t]*{re.escape(parameter)}\b", lambda _: f'"{argument}"', body)
    return re.sub(rf"\b{re.escape(parameter)}\b", lambda _: argument, body).replace("##", "")
