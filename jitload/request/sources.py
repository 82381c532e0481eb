"""Reads the sources of a call: texts, and files whose suffixes say what they contain."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from jitload.cpptext.lexer import strip_comments
from jitload.errors import JitLoadError
from jitload.request.arguments import (
    PathLike,
    Paths,
    Pieces,
    Texts,
    check_text,
    read_paths,
    read_texts,
)
from jitload.request.cubins import CubinLike
from jitload.words import Argument

CUDA_SUFFIXES = (".cu", ".cuh")
HOST_SUFFIXES = (".cpp", ".cc", ".cxx", ".c")
_OBJECT_SUFFIXES = (".o", ".obj", ".a")
_CONTENTS = {
    "CUDA C++": CUDA_SUFFIXES, "C++ and C": HOST_SUFFIXES, "object files": _OBJECT_SUFFIXES, "cubins": (".cubin",),
}  # fmt: skip
SUFFIXES = tuple(suffix for suffixes in _CONTENTS.values() for suffix in suffixes)


class Sources(NamedTuple):
    """The sources of a call, by language.

    Attributes:
        cuda: `(label, text)` pairs of `cuda_sources`, or of the CUDA files. Messages call a text by its label.
        host: `(label, text)` pairs of C++ for the host.
        objects: Paths of object files.
        cubins: Cubins by name, from `embed_cubin=` and from `.cubin` files. A file is named without its suffix.
        directories: The directories that contain the source files.
        are_files: Whether the texts come from files. Host compilers and nvcc compile each file by itself.
    """

    cuda: Pieces = ()
    host: Pieces = ()
    objects: tuple[str, ...] = ()
    cubins: Mapping[str, CubinLike] | None = None
    directories: tuple[Path, ...] = ()
    are_files: bool = False

    @property
    def has_code(self) -> bool:
        """Whether there is anything to compile or to link."""
        return bool(self.objects) or any(text.strip() for _, text in (*self.cuda, *self.host))


def inline_sources(
    name: str,
    cuda_sources: Texts | None,
    cpp_sources: Texts | None = None,
    embed_cubin: Mapping[str, CubinLike] | None = None,
) -> Sources:
    """Return the sources of `load_inline`, with a label for each text."""
    return Sources(
        cuda=label_pieces(name, read_texts(cuda_sources, "cuda_sources"), "cuda_sources"),
        host=label_pieces(name, read_texts(cpp_sources, "cpp_sources"), "cpp_sources"),
        cubins=embed_cubin,
    )


def label_pieces(name: str, texts: Sequence[str], argument: str) -> Pieces:
    """Return `(label, text)` pairs. A label is `vec.cu` for a single text, or `cuda_sources[1]` for one of many."""
    if len(texts) == 1:
        suffix = ".cpp" if argument.startswith("cpp") else ".cu"
        return ((f"{name}".removesuffix(suffix) + suffix, texts[0]),)  # the name is checked later
    return tuple([(f"{argument}[{number}]", text) for number, text in enumerate(texts)])


def file_sources(*arguments: Paths | None, embed_cubin: Mapping[str, CubinLike] | None = None) -> Sources:
    """Read the source files of `load`. The suffix of a file says what the file contains.

    Raises:
        JitLoadError: A file has an unknown suffix, or cannot be read.
    """
    paths = [path for argument in arguments for path in read_paths(argument, "sources")]
    cuda: list[tuple[str, str]] = []
    host: list[tuple[str, str]] = []
    cubins: dict[str, Path] = {}
    objects: list[str] = []
    for path in paths:
        suffix = path.suffix.lower()
        if suffix == ".cubin":
            cubins[path.stem] = path
        elif suffix in _OBJECT_SUFFIXES:
            objects.append(str(path.absolute()))
        elif suffix not in SUFFIXES:
            contents = ", ".join(f"{content} ({', '.join(suffixes)})" for content, suffixes in _CONTENTS.items())
            raise JitLoadError(
                f"source {_printable(str(path))!r}: its suffix does not say what it contains. Suffixes are those "
                f"of {contents}: rename the file",
                *(Argument("inline", python=", or pass its text to load_inline()"), "."),
            )
        else:
            pieces = cuda if suffix in CUDA_SUFFIXES else host
            pieces.append((_printable(str(path)), read_source_file(path)))
    can_merge = cubins and isinstance(embed_cubin, Mapping | None)
    return Sources(
        cuda=tuple(cuda),
        host=tuple(host),
        objects=tuple(objects),
        cubins={**cubins, **(embed_cubin or {})} if can_merge else embed_cubin,
        directories=tuple(dict.fromkeys(path.absolute().parent for path in paths)),
        are_files=True,
    )


def read_source_file(path: PathLike) -> str:
    """Return the text of a UTF-8 source file, without a byte order mark. Its comments may be in another encoding."""
    try:
        data = Path(path).read_bytes()
        try:
            text = data.decode("utf-8-sig")
        except UnicodeDecodeError:
            if not strip_comments(data.decode("latin-1")).isascii():
                raise
            text = data.decode("utf-8-sig", errors="replace")
        return check_text(text, os.fspath(path))
    except UnicodeDecodeError as error:
        raise JitLoadError(
            f"{os.fspath(path)} is not UTF-8 (byte {error.start}), so it cannot be a source; "
            "objects and cubins are recognised by their suffixes, .o and .cubin"
        ) from error
    except OSError as error:
        raise JitLoadError(f"source {os.fspath(path)!r} cannot be read: {error.strerror}") from error


def _printable(label: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in label)
