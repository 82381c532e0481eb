"""What a call gives as source in, labelled texts out: which of it is device code, and which the host's."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from jitload.embed import Image
from jitload.errors import JitLoadError
from jitload.paths import check_path

Texts = str | Sequence[str]
Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
Kind = Literal["device", "host", "mixed"]
Pieces = tuple[tuple[str, str], ...]

HOST_SUFFIXES = (".cpp", ".cc", ".cxx", ".c")


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """Host code that is compiled by itself.

    Attributes:
        file: Its name in the build's directory.
        pieces: Label and text of each piece.
        is_file: Whether it is a source file, compiled as it is; inline text gets upstream's convenience headers and the
            exports of `functions=`.
        flags: Options for it alone.
    """

    file: str
    pieces: Pieces
    is_file: bool = False
    flags: tuple[str, ...] = ()

    @property
    def is_mixed(self) -> bool:
        """Whether it is kernels and the C++ that launches them with `<<<…>>>` in one text."""
        return self.file.endswith(".cu")


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSource:
    """The hand-written part of a request.

    Attributes:
        units: What is compiled, in order.
        objects: Object files to link.
        cubins: Name and bytes of each cubin to embed.
        flags: `extra_cflags`.
        link_flags: `extra_ldflags`.
        is_object: Whether an object for a link of the user's own is made of it, and no library.
    """

    units: tuple[Unit, ...]
    objects: tuple[str, ...] = ()
    cubins: tuple[tuple[str, bytes], ...] = ()
    flags: tuple[str, ...] = ()
    link_flags: tuple[str, ...] = ()
    is_object: bool = False

    @property
    def is_mixed(self) -> bool:
        """Whether a unit of it is kernels and host code in one text."""
        return any(unit.is_mixed for unit in self.units)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """What a call gives as source, by what it is.

    Attributes:
        cuda: Label and text of each piece of `cuda_sources`, or of each CUDA file.
        host: The same of C++.
        objects: Object files.
        cubins: `embed_cubin=`, and the cubins among the files by their names.
        homes: The directories of the files.
        are_files: Whether the pieces are files, each compiled by itself as it is.
    """

    cuda: Pieces = ()
    host: Pieces = ()
    objects: tuple[str, ...] = ()
    cubins: Mapping[str, Image] | None = None
    homes: tuple[Path, ...] = ()
    are_files: bool = False

    @property
    def has_code(self) -> bool:
        """Whether there is anything to compile or to link."""
        return bool(self.objects) or any(text.strip() for _, text in (*self.cuda, *self.host))


def read_inline(
    name: str, cuda_sources: Texts | None, *, cpp_sources: Texts | None, embed_cubin: Mapping[str, Image] | None
) -> Sources:
    """Read the texts of a call; `name` is the module's, for their labels."""
    cuda, host = read_texts(cuda_sources, "cuda_sources"), read_texts(cpp_sources, "cpp_sources")
    return Sources(
        cuda=with_labels(name, cuda, "cuda_sources"),
        host=with_labels(name, host, "cpp_sources"),
        cubins=embed_cubin,
    )


def with_labels(name: str, texts: Sequence[str], what: str) -> Pieces:
    """Return the pieces of a source with the labels that messages use: `vec.cu`, or `cuda_sources[1]` of several."""
    if len(texts) == 1:
        return ((f"{name}.{'cpp' if what.startswith('cpp') else 'cu'}", texts[0]),)
    return tuple((f"{what}[{number}]", text) for number, text in enumerate(texts))


def read_texts(value: Texts | None, what: str) -> tuple[str, ...]:
    """Return the pieces of `cuda_sources=` and its like."""
    if value is None:
        return ()
    if isinstance(value, bytes | bytearray) or not isinstance(value, Iterable):
        raise JitLoadError(f"{what} must be a str or a list of str, got {type(value).__name__}")
    texts = (value,) if isinstance(value, str) else tuple(value)
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            raise JitLoadError(f"{what} must be a str or a list of str, got {type(text).__name__} at {number}")
        check_text(text, f"{what}[{number}]" if len(texts) > 1 else what)
    return tuple(_with_line_ends(text.removeprefix("\ufeff")) for text in texts)


def _with_line_ends(text: str) -> str:
    """Give lines that end with CR alone ends that compilers know."""
    return text if "\n" in text else text.replace("\r", "\n")


def check_text(text: str, what: str) -> str:
    """Return a text that a compiler is to read, refusing characters that would not arrive."""
    if not isinstance(text, str):
        raise JitLoadError(f"{what} must be a str, got {type(text).__name__}")
    if "\0" in text:
        raise JitLoadError(f"{what} holds a NUL character, which no compiler reads past")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise JitLoadError(f"{what} is not valid Unicode: a lone surrogate at {error.start}") from error
    return text


def read_file(path: str | os.PathLike[str]) -> str:
    """Return the text of a source file, UTF-8 with or without a byte order mark."""
    try:
        return check_text(_with_line_ends(Path(path).read_text(encoding="utf-8-sig")), os.fspath(path))
    except UnicodeDecodeError as error:
        raise JitLoadError(
            f"{os.fspath(path)} is not UTF-8 (byte {error.start}), and a source is text; "
            "objects and cubins are known by their suffixes, .o and .cubin"
        ) from error
    except OSError as error:
        raise JitLoadError(f"source {os.fspath(path)!r} cannot be read: {error.strerror}") from error


def read_options(flags: Sequence[str] | None, what: str) -> tuple[str, ...]:
    """Return a list of compiler flags, empty ones left out."""
    if flags is None:
        return ()
    given = None if isinstance(flags, str) or not isinstance(flags, Iterable) else list(flags)
    if given is None or not all(isinstance(flag, str) for flag in given):
        raise JitLoadError(f"{what} must be a list of str, one option each, got {flags if given is None else given!r}")
    return tuple(check_text(flag, what) for flag in given if flag.strip())


def read_paths(value: Paths | None, what: str) -> tuple[Path, ...]:
    """Return the paths of `sources=` and its like."""
    if value is None:
        return ()
    several = None if isinstance(value, bytes | bytearray) or not isinstance(value, Iterable) else value
    paths = [value] if isinstance(value, str | os.PathLike) else list(several or ())
    if (several is None and not paths) or not all(isinstance(path, str | os.PathLike) for path in paths):
        raise JitLoadError(f"{what} must be a path or a list of paths, got {value if several is None else paths!r}")
    return tuple(check_path(path, what) for path in paths)


def read_kind(
    asked: str | None, texts: Sequence[str], *, has_cubins: bool, has_host_code: bool, options: tuple[str, ...] = ()
) -> Kind:
    """Return what the texts of `cuda_sources` are.

    Args:
        asked: `kind=`, which decides where it is given.
        texts: The pieces.
        has_cubins: Whether there are cubins to embed.
        has_host_code: Whether there is other C++ beside them, or functions are named that need not be kernels.
        options: The compiler's options, which may define what the texts ask for.
    """
    if asked is None:
        return _guess_kind(tuple(texts), has_cubins, has_host_code, options) if texts else "host"
    kinds: tuple[Kind, ...] = ("device", "host", "mixed")
    if kind := next((kind for kind in kinds if kind == asked), None):
        return kind
    raise JitLoadError(f"kind must be 'device', 'host', 'mixed' or None, got {asked!r}")


_MARKS_OF_HOST = ("TVM_FFI_", "tvm::", "tvm/ffi/")


def is_kernels_alone(texts: Sequence[str]) -> bool:
    """Tell whether texts look like kernels, and like nothing that launches them, as far as that shows at a glance."""
    marks = (*_MARKS_OF_HOST, "<<<")
    return any("__global__" in text for text in texts) and not any(mark in text for text in texts for mark in marks)


@functools.lru_cache(maxsize=64)
def _guess_kind(
    texts: tuple[str, ...],
    has_cubins: bool,  # noqa: FBT001  positional for the cache
    has_host_code: bool,  # noqa: FBT001
    options: tuple[str, ...],
) -> Kind:
    if not has_cubins and is_kernels_alone(texts):
        return "device"  # a hit needs no lexer

    from jitload.cpptext.source_kind import classify

    kind = classify(texts, has_embed_cubin=has_cubins, options=options, for_nvrtc=not has_host_code)
    if kind != "host":
        return "mixed" if kind == "both" else "device"
    is_host_like = has_cubins or any(mark in text for text in texts for mark in _MARKS_OF_HOST)
    return "host" if is_host_like or has_host_code else "device"  # where the kernels may be in a header


def has_kernels_in_headers(sources: Sources, include_dirs: Sequence[Path], options: Sequence[str]) -> bool:
    """Tell whether C++ in the CUDA sources includes kernels of the user's: then it takes nvcc, as they would."""
    texts = [text for _, text in sources.cuda]
    if sources.cubins or not any("include" in text for text in texts):
        return False

    from jitload.cpptext.source_kind import headers_have_kernels

    return headers_have_kernels(texts, [path.absolute() for path in include_dirs], options)


def check_backend(backend: str | None) -> None:
    """Refuse a backend that there is none for."""
    if backend not in (None, "cuda"):
        raise JitLoadError(f"backend={backend!r}: jitload builds for CUDA alone; leave it out, or give 'cuda'")


def read_files(*given: Paths | None, embed_cubin: Mapping[str, Image] | None = None) -> Sources:
    """Read source files; the suffix says what each is."""
    paths = [path for files in given for path in read_paths(files, "sources")]
    pieces: dict[str, list[tuple[str, str]]] = {"cuda": [], "host": []}
    cubins: dict[str, Path] = {}
    objects: list[str] = []
    for path in paths:
        suffix = path.suffix.lower()
        if suffix == ".cubin":
            cubins[path.stem] = path
        elif suffix in (".o", ".obj", ".a"):
            objects.append(str(path.absolute()))
        else:
            kind = "host" if suffix in HOST_SUFFIXES else "cuda"
            pieces[kind].append((_printable(str(path)), read_file(path)))
    homes = dict.fromkeys(path.absolute().parent for path in paths)
    may_join = cubins and isinstance(embed_cubin, Mapping | None)
    return Sources(
        cuda=tuple(pieces["cuda"]),
        host=tuple(pieces["host"]),
        objects=tuple(objects),
        cubins={**cubins, **(embed_cubin or {})} if may_join else embed_cubin,
        homes=tuple(homes),
        are_files=True,
    )


def _printable(label: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in label)
