"""The source texts of a call, and the files that `load` and `build` read them from."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from jitload.errors import JitLoadError
from jitload.request.arguments import Paths, Texts, check_text, normalize_newlines, read_paths, read_texts
from jitload.request.cubins import CubinLike

Pieces = tuple[tuple[str, str], ...]

HOST_SUFFIXES = (".cpp", ".cc", ".cxx", ".c")


class Sources(NamedTuple):
    """The sources of a call, by language.

    Attributes:
        cuda: Label and text of each piece of `cuda_sources`, or of each CUDA file.
        host: The same of C++.
        objects: Object files.
        cubins: `embed_cubin=`, with the cubins among the files under their file names.
        directories: The directories of the files.
        are_files: Whether the pieces are files, each of which is compiled by itself.
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

    @property
    def cuda_texts(self) -> tuple[str, ...]:
        """The texts of `cuda_sources`."""
        return tuple(text for _, text in self.cuda)


def inline_sources(
    name: str, cuda_sources: Texts | None, *, cpp_sources: Texts | None, embed_cubin: Mapping[str, CubinLike] | None
) -> Sources:
    """Return the sources of `load_inline`; their labels contain the module's name."""
    return Sources(
        cuda=label_pieces(name, read_texts(cuda_sources, "cuda_sources"), "cuda_sources"),
        host=label_pieces(name, read_texts(cpp_sources, "cpp_sources"), "cpp_sources"),
        cubins=embed_cubin,
    )


def label_pieces(name: str, texts: Sequence[str], argument: str) -> Pieces:
    """Give each piece the label that messages use: `vec.cu` for a single one, `cuda_sources[1]` for one of several."""
    if len(texts) == 1:
        return ((f"{name}.{'cpp' if argument.startswith('cpp') else 'cu'}", texts[0]),)
    return tuple((f"{argument}[{number}]", text) for number, text in enumerate(texts))


def file_sources(*arguments: Paths | None, embed_cubin: Mapping[str, CubinLike] | None = None) -> Sources:
    """Read the source files of `load`; the suffix of each says what it contains."""
    paths = [path for argument in arguments for path in read_paths(argument, "sources")]
    cuda: list[tuple[str, str]] = []
    host: list[tuple[str, str]] = []
    cubins: dict[str, Path] = {}
    objects: list[str] = []
    for path in paths:
        suffix = path.suffix.lower()
        if suffix == ".cubin":
            cubins[path.stem] = path
        elif suffix in (".o", ".obj", ".a"):
            objects.append(str(path.absolute()))
        else:
            pieces = host if suffix in HOST_SUFFIXES else cuda
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


def read_source_file(path: str | os.PathLike[str]) -> str:
    """Return the text of a source file in UTF-8, with or without a byte order mark."""
    try:
        return check_text(normalize_newlines(Path(path).read_text(encoding="utf-8-sig")), os.fspath(path))
    except UnicodeDecodeError as error:
        raise JitLoadError(
            f"{os.fspath(path)} is not UTF-8 (byte {error.start}), so it cannot be source text; "
            "objects and cubins are recognised by their suffixes, .o and .cubin"
        ) from error
    except OSError as error:
        raise JitLoadError(f"source {os.fspath(path)!r} cannot be read: {error.strerror}") from error


def _printable(label: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in label)
