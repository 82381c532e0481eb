"""The arguments of the public functions in, one frozen `Request` out."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from jitload.arch import resolve_arch
from jitload.errors import JitLoadError, LaunchSpecError
from jitload.launch import Launch
from jitload.settings import Settings, read_settings

Texts = str | Sequence[str]
Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
Functions = str | Sequence[str] | Mapping[str, "Launch | str | None"]

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SLUG = re.compile(r"[^A-Za-z0-9_]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What a public call asks for; equal requests are answered by the same module.

    Attributes:
        name: The module's name, as given.
        pieces: Label and text of each piece of device code.
        functions: Exported names and their launches; None exports every kernel.
        archs: The architectures, resolved.
        options: NVRTC options from `extra_cuda_cflags`.
        include_dirs: The user's include directories.
        settings: What the environment said at the call.
    """

    name: str
    pieces: tuple[tuple[str, str], ...]
    functions: tuple[tuple[str, Launch], ...] | None
    archs: tuple[str, ...]
    options: tuple[str, ...]
    include_dirs: tuple[str, ...]
    settings: Settings

    @property
    def slug(self) -> str:
        """The name as part of a file's name: letters, digits and underscores, at most 48."""
        return slug_of(self.name)


def make_request(  # noqa: PLR0913  one for each thing a user may ask for
    name: str,
    pieces: tuple[tuple[str, str], ...],
    *,
    functions: Functions | None,
    arch: str | Sequence[str],
    flags: Sequence[str] | None,
    include_paths: Paths | None,
) -> Request:
    """Check the arguments of a public call and return its request, with the settings of this moment."""
    settings = read_settings()
    check_name(name)
    if not any(text.strip() for _, text in pieces):
        raise JitLoadError(f"module {name!r} has no source: give cuda_sources=, or files as sources=")
    options = device_flags(read_options(flags, "extra_cuda_cflags"))
    named = (Path(option[2:]) for option in options if option.startswith("-I"))
    include_dirs = (*read_paths(include_paths, "extra_include_paths"), *named)
    return Request(
        name=name,
        pieces=pieces,
        functions=read_functions(functions),
        archs=resolve_arch(arch, settings),
        options=tuple(option for option in options if not option.startswith("-I")),
        include_dirs=tuple(str(path.absolute()) for path in include_dirs),
        settings=settings,
    )


def with_labels(name: str, texts: Sequence[str], what: str) -> tuple[tuple[str, str], ...]:
    """Return the pieces of a source with the labels that messages use: `vec.cu`, or `cuda_sources[1]` of several."""
    if len(texts) == 1:
        return ((f"{name}.cu", texts[0]),)
    return tuple((f"{what}[{number}]", text) for number, text in enumerate(texts))


def slug_of(name: str) -> str:
    """Return a name as part of a file's name; names with the same slug differ by their key."""
    return _SLUG.sub("_", name)[:48] or "_"


def check_name(name: str) -> str:
    """Return a module's name, refusing one that no message and no path could show."""
    if not isinstance(name, str):
        raise JitLoadError(f"name must be a str, got {type(name).__name__}")
    if not name or len(name) > 256 or not name.isprintable():
        raise JitLoadError(f"name={name[:80]!r} must have 1 to 256 printable characters")
    return name


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
    return tuple(text.removeprefix("\ufeff") for text in texts)


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
        return check_text(Path(path).read_text(encoding="utf-8-sig"), os.fspath(path))
    except UnicodeDecodeError as error:
        raise JitLoadError(f"{os.fspath(path)} is not UTF-8 (byte {error.start})") from error
    except OSError as error:
        raise JitLoadError(f"source {os.fspath(path)!r} cannot be read: {error.strerror}") from error


def read_functions(functions: Functions | None) -> tuple[tuple[str, Launch], ...] | None:
    """Return `functions=` as names with launches: a name, several, or a mapping to a `Launch` or a docstring."""
    if functions is None:
        return None
    if isinstance(functions, Mapping):
        rows = list(functions.items())
    elif isinstance(functions, Iterable):
        rows = [(name, None) for name in ([functions] if isinstance(functions, str) else functions)]
    else:
        problem = f"must be a name, several, or a mapping to Launch records, got {type(functions).__name__}"
        raise LaunchSpecError(problem, field="functions")
    if not rows:
        raise LaunchSpecError("is empty", field="functions", hint="Leave it out to export every kernel.")
    names = [_exported(name) for name, _ in rows]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise LaunchSpecError(f"names {twice!r} twice", field="functions")
    return tuple((name, _launch(name, value)) for name, value in rows)


def _exported(name: object) -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise LaunchSpecError(
            f"{name!r} is not a name a function can be exported under",
            field="functions",
            hint="Use letters, digits and underscores; name the kernel itself with Launch(kernel=…).",
        )
    return name


def _launch(name: str, value: object) -> Launch:
    if value is None:
        return Launch()
    if isinstance(value, str):
        return Launch(doc=value)
    if isinstance(value, Launch):
        return value
    raise LaunchSpecError(
        f"functions[{name!r}] must be a Launch or a docstring, got {type(value).__name__}",
        kernel=name,
        field="functions",
    )


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
    return tuple(map(Path, paths))


# nvcc's options that mean something else to NVRTC, or nothing: the host's optimisation and its compiler.
_IGNORED = re.compile(
    r"-O[0-3]|--?expt-relaxed-constexpr|--?(?:expt-)?extended-lambda|-Xcompiler=.*|--compiler-options=.*|--?threads=.*|-t=\d+"
)
_TAKES_NEXT = {
    "-Xptxas": "--ptxas-options=", "--ptxas-options": "--ptxas-options=", "-Xcompiler": None,
    "--compiler-options": None,
    "-std": "--std=", "--std": "--std=", "-maxrregcount": "--maxrregcount=", "--maxrregcount": "--maxrregcount=",
    "-D": "-D", "-U": "-U", "-I": "-I", "--include-path": "-I", "--threads": None, "-t": None,
    "-include": "--pre-include=",
}  # fmt: skip
_ARCH_OPTION = re.compile(r"--?(?:gpu-architecture|arch|gencode|generate-code|gpu-code|code)(?:=|$)")


def device_flags(flags: Sequence[str]) -> tuple[str, ...]:
    """Return `extra_cuda_cflags`, written for nvcc, as NVRTC's options.

    Host optimisation and host-compiler options have no meaning here and are left out; what NVRTC does not know it
    refuses itself.
    """
    result: list[str] = []
    waiting = iter(flags)
    for flag in waiting:
        if _ARCH_OPTION.match(flag):
            raise JitLoadError(f"extra_cuda_cflags has {flag!r}: name architectures with arch=, such as arch='sm_90a'")
        if flag in _TAKES_NEXT:
            value = next(waiting, None)
            if value is None:
                raise JitLoadError(f"extra_cuda_cflags ends with {flag!r}, which takes a value")
            if (prefix := _TAKES_NEXT[flag]) is not None:
                result.append(prefix + value)
        elif not _IGNORED.fullmatch(flag):
            result.append(re.sub("^--include-path=", "-I", flag))
    return tuple(result)
