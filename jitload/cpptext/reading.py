"""What a source says before a compiler reads it: one record, from which all later steps read."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cached_property
from pathlib import Path

from jitload.candidate import Candidate
from jitload.cpptext.declarations import find_candidates, find_unambiguous
from jitload.cpptext.includes import IncludeScan
from jitload.cpptext.lexer import has_matching_brackets, strip_header
from jitload.cpptext.source_kind import UserHeader, read_user_headers
from jitload.cpptext.structures import Declarations, declares_variables, find_declarations, may_declare


class SourceReading:
    """The facts in the texts of a source and in the user's headers. What few sources need is read when it is asked for.

    Attributes:
        texts: The texts.
        candidates: The functions in the texts that look like kernels.
        unambiguous: The candidates that a name alone identifies.
        has_variables: Whether the texts may declare device variables.
    """

    def __init__(self, texts: tuple[str, ...], option_lines: tuple[str, ...], include_dirs: Sequence[Path]) -> None:
        """Read the texts. `option_lines` are lines of C++ for the options that include headers or define macros."""
        self.texts = texts
        self.candidates: tuple[Candidate, ...] = find_candidates(texts)
        self.unambiguous = find_unambiguous(self.candidates)
        self.has_variables = any(map(declares_variables, texts))
        self._option_lines = option_lines
        self._include_dirs = include_dirs

    @property
    def has_matching_brackets(self) -> bool:
        """Whether the brackets in the texts match."""
        return has_matching_brackets("\n".join(self.texts))

    @cached_property
    def headers(self) -> tuple[UserHeader, ...]:
        """The user's headers that the texts and the options include, directly or through other headers."""
        return tuple(read_user_headers((*self.texts, *self._option_lines), self._include_dirs))

    @cached_property
    def header_texts(self) -> tuple[str, ...]:
        """The texts of the user's headers without comments."""
        return tuple(strip_header(header.text) for header in self.headers)

    @cached_property
    def header_candidates(self) -> tuple[Candidate, ...]:
        """The functions in the options and in the user's headers that look like kernels."""
        found = find_candidates((*self._option_lines, *(header.text for header in self.headers)))
        return tuple(candidate._replace(piece=candidate.piece + len(self.texts)) for candidate in found)

    @cached_property
    def _includes(self) -> IncludeScan:
        return IncludeScan((*self.texts, *self._option_lines), self._include_dirs)

    def files(self, known_dirs: Sequence[Path], declarations: Sequence[str] = ()) -> tuple[Path, ...]:
        """Return the files outside the known directories that a compiler may read or look for, sorted.

        `declarations` are lines that the compiler read before the source.
        """
        if not declarations:
            return self._includes.headers(known_dirs)
        texts = (*self.texts, *self._option_lines, *declarations)
        return IncludeScan(texts, self._include_dirs).headers(known_dirs)

    def quoted_files(self, names: Collection[str]) -> frozenset[str]:
        """Return the names for which an `#include "name"` may read a file of the user."""
        return self._includes.quoted_files(names)

    def declarations(self, structures: frozenset[str]) -> Declarations | None:
        """Return the declarations, or None if no text has a device variable or a structure of these names."""
        others = (*self._option_lines, *self.header_texts) if structures else ()
        if not (self.has_variables or any(may_declare(text, structures) for text in (*self.texts, *others))):
            return None
        return find_declarations(self.texts, others)
