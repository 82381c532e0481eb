"""Device code as the compilers get it: the parts of a request that they need, and what its texts say."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from jitload.cpptext.lexer import tokenize
from jitload.cpptext.preprocessor import split_directives
from jitload.cpptext.reading import SourceReading
from jitload.cpptext.source_kind import UserHeader
from jitload.cuda.messages import missing_function_hint
from jitload.errors import CompileError, JitLoadError, LaunchSpecError
from jitload.request.kind import DEFAULT_DEVICE
from jitload.request.request import Request
from jitload.signature import probe

_LACKS_DEVICE = r"#\s*include\s*[<\"](?:cute/|cutlass/|thrust/complex\.h)"
_INCLUDE_OR_MACRO_OPTION = r"(?s)(?:--pre-include=|-include=)(.*)|(?:-D|--define-macro=)(\w+)=(.*)"
# Matches what NVRTC's option --minimal removes: textures and surfaces, types and macros of the runtime and the driver,
# and `<<<…>>>`. Also matches #include, because headers such as CUB's may use what --minimal removes. A source without a
# match compiles to the same code with --minimal. With a match, the code may differ without an error, for example if the
# source tests a removed macro with #ifdef.
_NEEDS_MORE_THAN_MINIMAL = re.compile(
    r"#\s*include|\binclude=|minimal|MINIMAL|cuda[A-Z]|CUDART|<<<|_H__|libraryProp"
    r"|\b(?:CU[a-z]|CU_|CUDA_|tex|surf|MAJOR_VERSION|MINOR_VERSION|PATCH_LEVEL)"
)


class _Parts(NamedTuple):
    """The parts of a `DeviceSource`.

    Attributes:
        name: The module's name.
        pieces: The (label, text) pairs of the source. In compiler messages, the label is the file name.
        options: The user's NVRTC options without include directories.
        include_dirs: The user's include directories.
        kernels: The kernels in `Launch` records, as the user writes them: `scale<float>`, `scale(float*, int)`.
        signatures: The (name, signature) pairs of hand-written signatures. The name is an entry of `kernels`, or the
            exported name if the `Launch` record names no kernel.
        cpu_flags: The options of the host compiler if the code runs on the CPU.
        instrumentation: Names of sanitizers for code on the CPU, and `DEBUG`.
        is_isolated: Whether NVRTC runs in a child process.
        keeps_headers: Whether a process may keep the headers that the source includes parsed.
        headers: Headers whose texts replace the user's files of these names.
        exports: The names in `functions=` without a `Launch.kernel`.
        part: The number of the source among the compilations that make up one library for the CPU.
    """

    name: str
    pieces: tuple[tuple[str, str], ...]
    options: tuple[str, ...] = ()
    include_dirs: tuple[Path, ...] = ()
    kernels: tuple[str, ...] = ()
    signatures: tuple[tuple[str, str], ...] = ()
    cpu_flags: tuple[str, ...] = ()
    instrumentation: tuple[str, ...] = ()
    is_isolated: bool = False
    keeps_headers: bool = False
    headers: tuple[UserHeader, ...] = ()
    exports: tuple[str, ...] = ()
    part: int = 0


class DeviceSource(_Parts):
    """Device code to compile, with what its texts say."""

    @property
    def piece_texts(self) -> tuple[str, ...]:
        """The texts of the pieces."""
        return tuple(text for _, text in self.pieces)

    @property
    def option_lines(self) -> tuple[str, ...]:
        """A line of C++ for each option that includes a header or defines a macro."""
        matches = (m for option in self.options if (m := re.match(_INCLUDE_OR_MACRO_OPTION, option)))
        return tuple(f'#include "{m[1]}"' if m[1] else f"#define {m[2]} {m[3]}" for m in matches)

    @cached_property
    def reading(self) -> SourceReading:
        """What the texts and the user's headers say."""
        return SourceReading(self.piece_texts, self.option_lines, self.include_dirs)

    @cached_property
    def compiler_options(self) -> tuple[str, ...]:
        """The options, and those that headers need whose functions lack `__device__`.

        Without the latter, the first compile may take seconds to fail, before `compile_kernels_alone` adds them.
        """
        texts = (*self.piece_texts, *self.reading.header_texts)
        lacks_device = any(re.search(_LACKS_DEVICE, text) for text in texts)
        return with_default_device(self.options) if lacks_device else self.options

    @property
    def first_expressions(self) -> tuple[str, ...]:
        """C++ expressions for the kernels whose types the first run of a compiler has to report.

        They are the kernels in `Launch` records, and the functions in the source that a name alone identifies. Other
        templates and overloads are left out, because their symbols contain the types anyway.
        """
        names = (candidate.name for candidate in self.reading.unambiguous)
        return tuple(dict.fromkeys((*map(probe.kernel_expression, self.kernels), *names)))

    @property
    def header_texts(self) -> Iterator[tuple[UserHeader, str]]:
        """The headers with their texts. In compiler messages, they keep the paths of the user's files."""
        return ((header, join_pieces([(str(header.path), header.text)])) for header in self.headers)

    @property
    def is_minimal(self) -> bool:
        """Whether `--minimal` surely leaves the code unchanged. It saves a sixth of a small kernel's compile time."""
        return not any(map(_NEEDS_MORE_THAN_MINIMAL.search, (*self.piece_texts, *self.options)))

    @cached_property
    def text(self) -> str:
        """The pieces as one text. `#line` directives make compilers count lines within each piece."""
        return join_pieces(self.pieces)


def device_source(request: Request) -> DeviceSource:
    """Return the parts of a request that the compilers of device code need."""
    functions = request.functions or ()
    kernels = [launch.kernel for _, launch in functions if launch.kernel]
    include_dirs = [*map(Path, request.include_dirs)]
    if any("include" in text for text in (*(text for _, text in request.pieces), *request.options)):
        from jitload.toolchain.cutlass import cutlass_dirs  # looks for packages, which few sources include

        include_dirs += cutlass_dirs()
    return DeviceSource(
        name=request.name,
        pieces=request.pieces,
        options=request.options,
        include_dirs=tuple(include_dirs),
        kernels=tuple(dict.fromkeys(kernels)),
        signatures=tuple((launch.kernel or name, launch.signature) for name, launch in functions if launch.signature),
        cpu_flags=request.cpu_flags,
        instrumentation=request.instrumentation,
        is_isolated=request.settings.isolates,
        keeps_headers=request.settings.precompiles,
        exports=tuple(name for name, launch in functions if not launch.kernel),
    )


def with_default_device(options: tuple[str, ...]) -> tuple[str, ...]:
    """Return the options with those that make functions without `__device__` functions of the device."""
    return (*options, *(option for option in DEFAULT_DEVICE if option not in options))


def join_pieces(pieces: Iterable[tuple[str, str]]) -> str:
    """Join (label, text) pairs to one text. Compilers use the labels as file names in messages."""
    # Only these two characters need a backslash, because labels contain no unprintable characters.
    escaped = ((re.sub(r'(["\\])', r"\\\1", label), text) for label, text in pieces)
    return "".join(f'#line 1 "{label}"\n{text}\n' for label, text in escaped)


def leading_directives(text: str) -> str:
    """Return the lines up to the last `#include` before any code and conditionals, or "" if there is none."""
    end = 0
    for directive, run in split_directives(tokenize(text.partition("{")[0])):
        if directive is None or directive.name not in ("include", "define", "undef", "pragma"):
            break
        if directive.name == "include":
            end = run[-1].end_line
    return "".join(f"{line}\n" for line in text.split("\n")[:end])


@contextmanager
def naming_exports(request: Request) -> Iterator[None]:
    """Add details to errors that the `with` block raises.

    A LaunchSpecError about a `Launch.kernel` gets the name under which `functions=` exports the kernel. A CompileError
    gets a hint if `functions=` seems to misspell a host function.
    """
    try:
        yield
    except CompileError as error:
        exports = [name for name, launch in request.functions or () if not launch.kernel]
        error.hint = missing_function_hint(error.log, exports, [text for _, text in request.pieces]) or error.hint
        raise
    except LaunchSpecError as error:
        names = (name for name, launch in request.functions or () if launch.kernel == error.expression)
        error.kernel = error.kernel or next(names, "")
        raise


def check_is_not_ptx(request: Request) -> None:
    """Raise JitLoadError for PTX, because the compilers' messages would not say what to do."""
    if not any(".version" in text for _, text in request.pieces):
        return
    from jitload.kernels.ptx import format_of

    if label := next((label for label, text in request.pieces if format_of(text)), None):
        raise JitLoadError(
            f"{label} is PTX, not CUDA source: compile it with compile_cubin(), and pass the result as "
            "embed_cubin={'k': …} without a source, with functions={'f': Launch(signature='(float* x, int n)', …)}"
        )
