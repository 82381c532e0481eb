"""Checks the arguments of a public function such as `load_inline`: options, functions and sanitizers."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import pairwise
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from jitload.errors import JitLoadError, LaunchSpecError
from jitload.request.launch import Launch
from jitload.request.tune import Tuned
from jitload.toolchain.arch import CPU
from jitload.words import Argument, Words

if TYPE_CHECKING:
    from jitload.cpptext.source_kind import SourceKind
    from jitload.request.sources import Sources

Texts = str | Sequence[str]
PathLike = str | os.PathLike[str]
Paths = PathLike | Sequence[PathLike]
Pieces = tuple[tuple[str, str], ...]

Functions = str | Sequence[str] | Mapping[str, Launch | Sequence[Launch] | str | None]

SANITIZERS = ("address", "undefined", "race")
DEBUG = "debug"  # the instrumentation for a debugger


# ---- compiler options ------------------------------------------------------------------------------------------

FAST_COMPILE = "--Ofast-compile=mid"
OPTION_LISTS = ("extra_cflags", "extra_cuda_cflags", "extra_ldflags", "extra_include_paths")


class Options(NamedTuple):
    """The compiler options of a call.

    Attributes:
        host: `extra_cflags` without `-I` options.
        host_dirs: The directories of the `-I` options in `extra_cflags`.
        cuda: `extra_cuda_cflags`, as written for nvcc.
        link: `extra_ldflags`.
        include_dirs: `extra_include_paths`.
    """

    host: tuple[str, ...] = ()
    host_dirs: tuple[Path, ...] = ()
    cuda: tuple[str, ...] = ()
    link: tuple[str, ...] = ()
    include_dirs: tuple[Path, ...] = ()


def read_options(  # noqa: PLR0913  the options of a call
    extra_cflags: Sequence[str] | None = None,
    extra_cuda_cflags: Sequence[str] | None = None,
    extra_ldflags: Sequence[str] | None = None,
    extra_include_paths: Paths | None = None,
    backend: str | None = None,
    *,
    fast_compile: bool = False,
) -> Options:
    """Check the compiler options of a call, and return them as `Options`."""
    if backend not in (None, "cuda"):
        raise JitLoadError(f"backend={backend!r}: jitload builds for CUDA only; leave it out, or pass 'cuda'")
    host, host_dirs = split_includes(read_flags(extra_cflags, "extra_cflags"))
    cuda = read_flags(extra_cuda_cflags, "extra_cuda_cflags")
    check_flags(fast_compile=fast_compile)
    if fast_compile and not any(re.match("-Ofc|--Ofast-compile", option) for option in cuda):
        cuda = (*cuda, FAST_COMPILE)  # with `max`, ptxas does not contract a * b + c
    link = read_flags(extra_ldflags, "extra_ldflags")
    return Options(host, host_dirs, cuda, link, read_paths(extra_include_paths, "extra_include_paths"))


def split_includes(options: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[Path, ...]]:
    """Return the options other than `-I`, and the directories of `-I`. Relative directories stay relative."""
    if not options:
        return (), ()
    others, dirs, remaining = [], [], iter(options)
    for option in remaining:
        if option == "-I":
            dirs.append(Path(next(remaining, ".")))
        elif option.startswith("-I"):
            dirs.append(Path(option[2:]))
        else:
            others.append(option)
    return tuple(others), tuple(dirs)


# ---- types of arguments ----------------------------------------------------------------------------------------


def check_name(name: str) -> str:
    """Return a module's name. Raise JitLoadError unless the name has 1 to 256 printable characters."""
    if not isinstance(name, str):
        raise JitLoadError(f"name must be a str, got {type(name).__name__}")
    if not name or len(name) > 256 or not name.isprintable():
        raise JitLoadError(f"name={name[:80]!r} must have 1 to 256 printable characters")
    return name


def check_text(text: str, argument: str) -> str:
    """Return `text`. Raise JitLoadError unless it is a str without NUL characters or lone surrogates."""
    if not isinstance(text, str):
        raise JitLoadError(f"{argument} must be a str, got {type(text).__name__}")
    if "\0" in text:
        raise JitLoadError(f"{argument} contains a NUL character, at which compilers stop reading")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        problem = f"is not valid Unicode: it has a lone surrogate at position {error.start}"
        raise JitLoadError(f"{argument} {problem}") from error
    return text


def read_texts(value: Texts | None, argument: str) -> tuple[str, ...]:
    """Return the texts in `value`, one str or several. `argument` is the value's name in error messages."""
    if value is None:
        return ()
    texts = (value,) if isinstance(value, str) else _read_list(value, argument, str, "a str or a list of str")
    for number, text in enumerate(texts):
        check_text(text, f"{argument}[{number}]" if len(texts) > 1 else argument)
    return tuple([text.removeprefix("\ufeff") for text in texts])


def read_strings(options: Sequence[str] | None, argument: str) -> tuple[str, ...]:
    """Check a list of compiler options, and return the options that are not blank."""
    if options is None:
        return ()
    items = _read_list(options, argument, str, "a list of str, one option each")
    return tuple(check_text(option, argument) for option in items if option.strip())


def _read_list(value: object, argument: str, type_: UnionType | type[str], expected: str) -> list[Any]:
    items = list(value) if isinstance(value, Iterable) and not isinstance(value, str | bytes | bytearray) else None
    wrong = [value] if items is None else [item for item in items if not isinstance(item, type_)]
    if items is None or wrong:
        raise JitLoadError(f"{argument} must be {expected}, got {wrong[0]!r:.200}")
    return items


def read_flags(options: Sequence[str] | None, argument: str) -> tuple[str, ...]:
    r"""Return the compiler options of a list. Options that are written for a shell are split into words.

    tvm-ffi and torch pass options through a shell. There, `"-O3 -DN=4"` is two options, and the shell removes the
    backslashes of `-DNAME=\"x\"` and the outer quotes of `'-DNAME="x"'`. Other options are not changed: `-I/a b` is
    one directory.
    """
    if options is None:  # checked first, because most calls have no options, and a repeated call takes 20 µs
        return ()
    return tuple(word for option in read_strings(options, argument) for word in _split_words(option, argument))


def _split_words(option: str, argument: str) -> Sequence[str]:
    """Return the words of an option that is written for a shell. Any other option is a single word."""
    first_quote = re.search(r"""\\?["']"?""", option)
    # An escaped or quoted quote is for the compiler: a shell removes the backslash or the outer quotes. A quote before
    # the option or its value, as in `'-DN=4'` and `-I"/a b"`, is for the shell.
    is_quoted = first_quote is not None and first_quote[0] in ('\\"', "'\"")
    is_quoted = is_quoted or re.match(r"(?:-[DUIL])?[\"']", option) is not None
    if not is_quoted and not re.search(r"\s", option):
        return (option,)
    try:
        words = shlex.split(option)
    except ValueError:
        words = []
    from jitload.request.options import TAKE_A_VALUE  # imported here because few options have a space

    are_options = all(word.startswith("-") or before in TAKE_A_VALUE for before, word in pairwise(words))
    if is_quoted and not (words and are_options) and not option.startswith("-I"):  # a path may have any characters
        raise JitLoadError(
            f"{argument} has {option!r}, whose quotes are wrong for a shell. A macro that is a string is written "
            """'-DNAME="a b"', without backslashes."""
        )
    return words if are_options and (len(words) > 1 or is_quoted) else (option.strip(),)


def read_paths(value: Paths | None, argument: str) -> tuple[Path, ...]:
    """Return the paths in `value`, one path or several. `argument` is the value's name in error messages."""
    if value is None:
        return ()
    if isinstance(value, str | os.PathLike):
        return (check_path(value, argument),)
    paths = _read_list(value, argument, str | os.PathLike, "a path or a list of paths")
    return tuple(check_path(path, argument) for path in paths)


def check_path(value: object, argument: str) -> Path:
    """Return `value` as a Path. Raise JitLoadError if `value` cannot be the name of a file."""
    if not isinstance(value, str | os.PathLike):
        raise JitLoadError(f"{argument} must be a path, a str or os.PathLike, got {type(value).__name__}")
    text = os.fspath(value)
    if not isinstance(text, str):
        raise JitLoadError(f"{argument} must be a path of type str, got a path of type {type(text).__name__}")
    if not text:
        raise JitLoadError(f"{argument} is an empty path")
    if "\0" in text:
        raise JitLoadError(f"{argument}={text!r} contains a NUL character, which a path cannot contain")
    return value if isinstance(value, Path) else Path(text)


def absolute_path(value: object, argument: str) -> Path:
    """Return `value` as an absolute path, which stays valid when the process changes its working directory."""
    return check_path(value, argument).absolute()


# ---- functions ---------------------------------------------------------------------------------------------------


def read_functions(functions: Functions | None) -> tuple[tuple[str, Launch], ...] | None:
    """Return `functions=` as `(exported name, launch)` pairs, one pair for each launch.

    If `functions` is None, return None. An empty list or mapping, which only hand-written C++ allows, gives ().
    """
    if functions is None:
        return None
    if isinstance(functions, Mapping):
        items = list(functions.items())
    elif isinstance(functions, Iterable):
        names = [functions] if isinstance(functions, str) else functions
        items = [(name, None) for name in (sorted(names, key=repr) if isinstance(names, AbstractSet) else names)]
    else:
        problem = f"must be a name, several names, or a mapping to Launch records, got {type(functions).__name__}"
        raise LaunchSpecError(problem, field="functions")
    exported = [_check_export_name(name) for name, _ in items]
    if duplicate := next((name for name in exported if exported.count(name) > 1), None):
        raise LaunchSpecError(f"names {duplicate!r} twice", field="functions")
    return tuple((name, _read_launch(name, value)) for name, values in items for value in _variants(name, values))


def read_kernels(kernels: Texts | None) -> tuple[tuple[str, Launch], ...] | None:
    """Return `kernels=` of `compile_cubin` as `(exported name, launch)` pairs. The names are empty."""
    return tuple(("", Launch(kernel=name)) for name in dict.fromkeys(read_texts(kernels, "kernels"))) or None


def _variants(name: str, value: object) -> Sequence[object]:
    """Return the list of launches for one function. A single value becomes a tuple."""
    if not isinstance(value, list | tuple):
        return (value,)
    if not value or not all(isinstance(launch, Launch) and launch.kernel for launch in value):
        problem = f"functions[{name!r}] must have a Launch(kernel=…) for each dtype"
        hint = f'Write {{"{name}": [Launch(kernel="{name}<float>"), Launch(kernel="{name}<__half>")]}}.'
        raise LaunchSpecError(problem, kernel=name, field="functions", hint=hint)
    return value


def _check_export_name(name: object) -> str:
    if not isinstance(name, str) or not (name.isascii() and name.isidentifier()):
        kernel = Argument("kernel name", python="name the kernel itself with Launch(kernel=…)")
        hint = Words("Use ASCII letters, digits (not first) and underscores; ", kernel, ".")
        raise LaunchSpecError(f"{name!r} cannot be the name of an exported function", field="functions", hint=hint)
    return name


def _read_launch(name: str, value: object) -> Launch:
    if value is None:
        return Launch()
    if isinstance(value, str):
        return Launch(doc=value)
    if isinstance(value, Launch):
        return value
    problem = f"functions[{name!r}] must be a Launch, a list of them or a docstring, got {type(value).__name__}"
    raise LaunchSpecError(problem, kernel=name, field="functions")


# ---- sanitizers and debug information ----------------------------------------------------------------------------


_OPTIONAL_FLAGS = ("gpu_check", "isolate")


def check_flags(**flags: object) -> None:
    """Raise JitLoadError unless each boolean argument is a bool, 0 or 1. `gpu_check` and `isolate` may also be None."""
    for name, value in flags.items():
        if value is False or value is True or (value is None and name in _OPTIONAL_FLAGS):
            continue
        if not isinstance(value, int) or value not in (0, 1):
            choice = "True, False or None" if name in _OPTIONAL_FLAGS else "True or False"
            raise JitLoadError(f"{name}={value!r} must be {choice}")


def read_instrumentation(sanitize: str | Iterable[str] | None, *, debug: bool) -> tuple[str, ...]:
    """Return the sanitizers in the order of `SANITIZERS`, and `DEBUG`. Raise an error for an unknown sanitizer."""
    value = () if sanitize is None else sanitize
    names = tuple(value) if isinstance(value, Iterable) and not isinstance(value, str) else (value,)
    if unknown := [name for name in names if name not in SANITIZERS]:
        raise JitLoadError(f"sanitize={unknown[0]!r} must be one of {', '.join(map(repr, SANITIZERS))}, or several")
    return tuple([name for name in SANITIZERS if name in names]) + (DEBUG,) * bool(debug)


# ---- all arguments ---------------------------------------------------------------------------------------------


class TorchText(NamedTuple):
    """How a PyTorch extension source is treated.

    Attributes:
        has_implicit_headers: Whether torch's headers are put in front of inline text.
        wraps_errors: Whether exported functions report errors as torch's own functions do. Otherwise, errors are
            reported as in plain pybind11.
    """

    has_implicit_headers: bool = True
    wraps_errors: bool = True


class Call(NamedTuple):
    """The arguments of a call to a public function such as `load_inline`.

    Attributes:
        name: The module's name.
        sources: Source texts or files.
        makes: The result: a `"module"` loaded in this process, a `"library"` that is only built, or a `"cubin"` of
            device code. Only for a module, the architecture `"native"` may mean the CPU.
        functions: `functions=`, as given.
        exports: `functions=` as `(exported name, launch)` pairs. None if `functions=` is absent or not read yet.
        options: Compiler options.
        arch: The architectures, as given.
        kind: `kind=`, as given.
        instrumentation: Names of sanitizers for kernels, and `DEBUG`.
        gpu_check: Whether NVRTC also checks kernels built for the CPU. If None, `JITLOAD_CPU_GPU_CHECK` decides.
        isolate: Whether NVRTC runs in a child process. If None, `JITLOAD_ISOLATE` decides.
        tuned: The file of measurements by which variants are chosen.
        torch: How PyTorch extension sources are treated. None for other sources, or before they are examined.
    """

    name: str
    sources: Sources
    makes: Literal["module", "library", "cubin"]
    functions: Functions | None = None
    options: Options = Options()
    arch: str | Sequence[str] = "native"
    kind: SourceKind | None = None
    instrumentation: tuple[str, ...] = ()
    gpu_check: bool | None = None
    isolate: bool | None = None
    tuned: Tuned | None = None
    torch: TorchText | None = None
    exports: tuple[tuple[str, Launch], ...] | None = None

    @property
    def names_cpu(self) -> bool:
        """Whether `arch` names the CPU."""
        return self.arch == CPU or (isinstance(self.arch, tuple | list) and CPU in self.arch)
