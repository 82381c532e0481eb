"""Translates `extra_cuda_cflags`, which is written for nvcc, into options of the compiler that is used."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from jitload.errors import JitLoadError
from jitload.request.arguments import split_includes
from jitload.words import Argument


class Option(NamedTuple):
    """An option of nvcc, and what the other compilers get, each time followed by the option's value.

    Attributes:
        names: nvcc's spellings.
        nvrtc: What NVRTC gets. With None, it gets nothing.
        host: What g++ gets for host code, and for kernels on the CPU if NVRTC gets the option. "" stands for the values
            alone, which are options of g++. A space at the end stands for two words.
        has_value: Whether a value follows the name, after `=` or as the next word.
    """

    names: tuple[str, ...]
    nvrtc: str | None = None
    host: str | None = None
    has_value: bool = True


def _any_dashes(*names: str) -> tuple[str, ...]:
    return tuple(f"{dashes}{name}" for dashes in ("-", "--") for name in names)


_ARCH = Option(_any_dashes("arch", "gpu-architecture"))
_GENCODE = Option(_any_dashes("gencode", "generate-code"))
_CODE = Option(_any_dashes("code", "gpu-code"))
_LIBRARY = Option(("-l", "-L"))
_RELOCATABLE = Option(_any_dashes("rdc", "relocatable-device-code"))
_COMPILE_RELOCATABLE = Option(("-dc", "--device-c"), has_value=False)
OPTIONS = (
    Option(("-D", "--define-macro"), "-D", "-D"),
    Option(("-U", "--undefine-macro"), "-U", "-U"),
    Option(("-I", "--include-path"), "-I", "-I"),
    Option(("-isystem", "--system-include"), "-I", "-isystem"),
    Option(("-include", "--pre-include"), "--pre-include=", "-include "),
    Option(("-std", "--std"), "--std=", "-std="),
    Option(("-maxrregcount", "--maxrregcount"), "--maxrregcount="),
    Option(("-Xptxas", "--ptxas-options"), "--ptxas-options="),
    Option(("-Ofc", "--Ofast-compile"), "--Ofast-compile="),
    Option(("-Xcompiler", "--compiler-options"), None, ""),
    Option(("-t", "--threads", "-threads")),
    Option(("-nohdmoveforward", "--no-host-device-move-forward"), "--builtin-move-forward=false", has_value=False),
    *(_ARCH, _GENCODE, _CODE, _LIBRARY, _RELOCATABLE, _COMPILE_RELOCATABLE),
)
_BY_NAME = {option.nvrtc.rstrip("="): option for option in OPTIONS if option.nvrtc}  # kernels on the CPU need these
_BY_NAME.update({name: option for option in OPTIONS for name in option.names})
# Options of compilers and linkers whose value may be a separate word.
TAKE_A_VALUE = frozenset((
    *(name for name, option in _BY_NAME.items() if option.has_value), "-x", "-Xlinker", "-Xcudafe", "-Xnvlink",
    "--linker-options", "-diag-suppress", "--diag-suppress", "--param",
))  # fmt: skip
# This and the following regular expressions are texts, which are compiled at their first use, because most calls have
# no options. This one matches options of nvcc without a value that have no meaning to NVRTC.
_IGNORED = r"-O[0-3]|--?expt-relaxed-constexpr|--?(?:expt-)?extended-lambda"
_LINK_TIME = r"-dlto|--dlink-time-opt|-lto|--lto"
_OTHER_OUTPUT = (
    r"--?(?:ptx|cubin|fatbin|optix-ir|lib|link|run|cuda|dryrun|generate-dependencies(?:-.*)?)|-E|--preprocess|-MM?"
    r"|-o|--output-file|-dlink|--device-link"
)
_OUTPUT = rf"{_OTHER_OUTPUT}|-c|--compile|-dw"
_JOINED = r"(-[DUIL]|-l(?!ib$|ink$|ineinfo$|to$|ist-))(.+)"  # but not the options -lib, -link, -lineinfo and -lto
_PSEUDO_ARCHS = ("native", "all", "all-major")  # values of nvcc's -arch that are not an architecture


def translate_cuda_options(kind: str, options: Sequence[str]) -> tuple[tuple[str, ...], tuple[Path, ...]]:
    """Translate `extra_cuda_cflags` for the compiler of a `"device"`, `"mixed"` or `"host"` source.

    Return the options other than `-I`, and the directories of `-I`.
    """
    translators: dict[str, Callable[[Sequence[str]], tuple[str, ...]]] = {
        "device": nvrtc_options,
        "mixed": nvcc_options,
        "host": host_options,
    }
    return split_includes(translators[kind](options))


def take_archs(options: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the options that select no architecture, and the selected architectures.

    Example:
        >>> take_archs(["-O3", "-gencode=arch=compute_90,code=[sm_90,compute_90]", "-arch", "sm_80"])
        (('-O3',), ('sm_90', 'compute_90', 'sm_80'))
    """
    others, taken = _take(options, (_ARCH, _GENCODE, _CODE))
    archs: list[str] = []
    has_code = any(option is _CODE for option, *_ in taken)  # then, -arch only selects the PTX that is compiled
    for option, value, words in taken:
        codes = value.rpartition("code=")[2]  # -gencode=arch=compute_90,code=sm_90 makes machine code, and no PTX
        selected = re.findall(r"\b(?:sm|compute)_\d{2,3}[af]?\b", codes)
        if not selected and value not in _PSEUDO_ARCHS:
            problem = f"has {words[0]!r}, which does not name an architecture such as sm_90a; "
            raise _error(problem, Argument("arch"), " takes architectures, too")
        if not (has_code and option is _ARCH):
            archs += selected
    return others, tuple(dict.fromkeys(archs))


def take_libraries(options: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the options that name no library to link, and those that do: `-lcudadevrt` and `-L/path`."""
    others, taken = _take(options, (_LIBRARY,))
    return others, tuple("".join(words) for _, _, words in taken)


_Read = tuple[Option | None, str, tuple[str, ...]]


def _take(options: Sequence[str], rows: Sequence[Option]) -> tuple[tuple[str, ...], list[_Read]]:
    """Return the words of all options but those of some rows of the table, and these options as they are read."""
    read = list(_read_options(options))
    others = tuple(word for option, _, words in read if option not in rows for word in words)
    return others, [item for item in read if item[0] in rows]


def _read_options(options: Sequence[str]) -> Iterator[_Read]:
    """Yield each option: its row of the table or None, its value, and its words. Without a row, the value is ""."""
    remaining = iter(options)
    for word in remaining:
        name, equals, value = word.partition("=")
        if (option := _BY_NAME.get(name)) and (equals or not option.has_value):
            yield option, value, (word,)
        elif option:
            if (following := next(remaining, None)) is None:
                raise _error(f"ends with {word!r}, which takes a value")
            yield option, following, (word, following)
        elif joined := re.fullmatch(_JOINED, word, re.DOTALL):
            yield _BY_NAME[joined[1]], joined[2], (word,)
        else:
            yield None, "", (word,)


def nvrtc_options(options: Sequence[str]) -> tuple[str, ...]:
    """Translate options of nvcc for NVRTC.

    Options for host code and for the host compiler are dropped. Options for relocatable device code are dropped, too,
    because there is no other device code to link with. NVRTC itself rejects options that it does not know.
    """
    result: list[str] = []
    for option, value, words in _read_options(options):
        if option is _RELOCATABLE and value not in ("true", "false"):
            raise _error(f"has {' '.join(words)!r}, where nvcc expects true or false")
        if option is not None and option is not _LIBRARY:
            result += () if option.nvrtc is None else (option.nvrtc + value,)
            continue
        _check_option(words[0], _OUTPUT)
        if not re.fullmatch(_IGNORED, words[0]):
            result += words
    return tuple(result)


def nvcc_options(options: Sequence[str]) -> tuple[str, ...]:
    """Return options for nvcc. Only the spelling of `-I` and `-rdc=true` changes."""
    result: list[str] = []
    for option, value, words in _read_options(options):
        if option is None:
            _check_option(words[0], _OTHER_OUTPUT)
        if option is _COMPILE_RELOCATABLE or (option is _RELOCATABLE and value == "true"):
            result.append("-rdc=true")
        else:
            result += (f"-I{value}",) if option is _BY_NAME["-I"] else words
    return tuple(result)


def host_options(options: Sequence[str]) -> tuple[str, ...]:
    """Return the options that nvcc would pass to the host compiler for a C++ source.

    These are macro definitions, included headers, include directories, the language standard, `-O`, and the values of
    `-Xcompiler`.
    """
    result: list[str] = []
    for option, value, (word, *_) in _read_options(options):
        if option is not None and option.host is not None:
            result += _for_host(option.host, value)
        elif option is None and re.fullmatch(r"-O[0-3]", word):
            result.append(word)
    return tuple(filter(None, result))


def _for_host(spelling: str, value: str) -> Sequence[str]:
    """Return the words that g++ gets for an option of the table."""
    if not spelling:
        return value.split(",")
    return (spelling[:-1], value) if spelling.endswith(" ") else (spelling + value,)


def _check_option(option: str, outputs: str) -> None:
    """Raise JitLoadError for an option that links device code, or that matches the pattern `outputs`."""
    if re.fullmatch(_LINK_TIME, option):
        raise _error(f"has {option!r}: jitload does not link device code; #include the code instead")
    if re.fullmatch(outputs, option):
        raise _error(f"has {option!r}: jitload chooses the type and the path of the output; leave the option out")


def _error(*problem: str | Argument) -> JitLoadError:
    return JitLoadError(Argument("extra_cuda_cflags", is_name=True), " ", *problem)


# ---- kernels on the CPU ----------------------------------------------------------------------------------------

_FOR_GPU_ONLY = (
    r"(?s)--?(?:use_fast_math|fmad|ftz|prec-div|prec-sqrt|restrict|extra-device-vectorization"
    r"|device-debug|generate-line-info|lineinfo|dopt|split-compile|minimal|default-device|device-int128|time"
    r"|device-as-default-execution-space|no-source-include|no-cache|frandom-seed|optimization-info|version-ident"
    r"|display-error-number|no-display-error-number|diag-[a-z-]+|disable-warnings|Werror|brief-diagnostics|modify-stack"
    r"-limit|builtin-[a-z-]+|unicode|pch[a-z-]*|resource-usage|source-in-ptx|keep)"
    r"(?:[= ].*)?|-[Gw]"
)


def cpu_options(options: Sequence[str]) -> tuple[str, ...]:
    """Translate NVRTC's options for g++. Options that only affect code for a GPU are dropped."""
    result: list[str] = []
    for option, value, (word, *_) in _read_options(options):
        if option is not None:
            result += () if option.host is None else _for_host(option.host, value)
        elif re.fullmatch("--?fmad=false", word):
            result.append("-ffp-contract=off")
        elif not re.fullmatch(_FOR_GPU_ONLY, word):
            problem = f"has {word!r}, which has no meaning on the CPU; options for g++ go in "
            raise _error(problem, Argument("extra_cflags", is_name=True))
    return tuple(result)


def old_dialect(options: Sequence[str]) -> str:
    """Return the last `-std` among options for g++ if it is older than C++17, otherwise ""."""
    last = next((option for option in reversed(options) if option.startswith("-std=")), "")
    return last if re.search(r"\+\+(?:98|0.|1[014xyz])$", last) else ""
