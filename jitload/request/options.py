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
)
_BY_NAME = {option.nvrtc.rstrip("="): option for option in OPTIONS if option.nvrtc}  # kernels on the CPU need these
_BY_NAME.update({name: option for option in OPTIONS for name in option.names})
# Options of compilers and linkers whose value may be a separate word.
TAKE_A_VALUE = frozenset((
    *_BY_NAME, "-L", "-l", "-x", "-arch", "-gencode", "-code", "-Xlinker", "-Xcudafe", "-Xnvlink", "--gpu-architecture",
    "--gpu-code", "--generate-code", "--linker-options", "-rdc", "--relocatable-device-code", "-diag-suppress",
    "--diag-suppress", "--param",
))  # fmt: skip
# This and the following regular expressions are texts, which are compiled at their first use, because most calls have
# no options. This one matches options of nvcc without a value that have no meaning to NVRTC.
_IGNORED = r"-O[0-3]|--?expt-relaxed-constexpr|--?(?:expt-)?extended-lambda"
_RELOCATABLE = r"--?(?:rdc|relocatable-device-code)=true|-dc|--device-c"
_LINK_TIME = r"-dlto|--dlink-time-opt|-lto|--lto"
_OTHER_OUTPUT = (
    r"--?(?:ptx|cubin|fatbin|optix-ir|lib|link|run|cuda|dryrun|generate-dependencies(?:-.*)?)|-E|--preprocess|-MM?"
    r"|-o|--output-file|-dlink|--device-link"
)
_OUTPUT = rf"{_OTHER_OUTPUT}|-c|--compile|-dw"
_ARCH = r"--?(gpu-architecture|arch|gencode|generate-code|gpu-code|code)(?:=(.*)|$)"
_LIBRARY = r"-l(?!ib$|ink$|ineinfo$|to$|ist-).+|-L.+"  # but not the options -lib, -link, -lineinfo and -lto
_CODE = r"--?(?:gpu-)?code\b"
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
    return split_includes(translators[kind](tuple(_joined(options))))


def _joined(options: Sequence[str]) -> Iterator[str]:
    """Yield the options. The two words `-rdc true` become the option `-rdc=true`."""
    remaining = iter(options)
    for option in remaining:
        if option in ("-rdc", "--relocatable-device-code", "-relocatable-device-code"):
            yield f"-rdc={next(remaining, '')}"
        else:
            yield option


def take_archs(options: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the options that select no architecture, and the selected architectures.

    Example:
        >>> take_archs(["-O3", "-gencode=arch=compute_90,code=[sm_90,compute_90]", "-arch", "sm_80"])
        (('-O3',), ('sm_90', 'compute_90', 'sm_80'))
    """
    others: list[str] = []
    archs: list[str] = []
    has_code = any(re.match(_CODE, option) for option in options)  # then, -arch only selects the PTX that is compiled
    remaining = iter(options)
    for option in remaining:
        match = re.fullmatch(_ARCH, option)
        if match is None:
            others.append(option)
            continue
        value = next(remaining, "") if match[2] is None else match[2]
        codes = value.rpartition("code=")[2]  # -gencode=arch=compute_90,code=sm_90 makes machine code, and no PTX
        selected = re.findall(r"\b(?:sm|compute)_\d{2,3}[af]?\b", codes)
        if not selected and value not in _PSEUDO_ARCHS:
            problem = f"has {option!r}, which does not name an architecture such as sm_90a; "
            raise _error(problem, Argument("arch"), " takes architectures, too")
        if not (has_code and match[1] in ("arch", "gpu-architecture")):
            archs += selected
    return tuple(others), tuple(dict.fromkeys(archs))


def take_libraries(options: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the options that name no library to link, and those that do: `-lcudadevrt` and `-L/path`."""
    others: list[str] = []
    libraries: list[str] = []
    remaining = iter(options)
    for option in remaining:
        if option in ("-l", "-L"):
            libraries.append(option + _next_word(remaining, option))
        else:
            (libraries if re.fullmatch(_LIBRARY, option) else others).append(option)
    return tuple(others), tuple(libraries)


def nvrtc_options(options: Sequence[str]) -> tuple[str, ...]:
    """Translate options of nvcc for NVRTC.

    Options for host code and for the host compiler are dropped. Options for relocatable device code are dropped, too,
    because there is no other device code to link with. NVRTC itself rejects options that it does not know.
    """
    result: list[str] = []
    for option, text in _read_options(options):
        if option is not None:
            result += () if option.nvrtc is None else (option.nvrtc + text,)
            continue
        _check_option(text, _OUTPUT)
        if not re.fullmatch(f"{_IGNORED}|{_RELOCATABLE}", text):
            result.append(text)
    return tuple(result)


def _read_options(options: Sequence[str]) -> Iterator[tuple[Option | None, str]]:
    """Yield each option of the table with its value, and every other option as (None, option)."""
    remaining = iter(options)
    for word in remaining:
        name, equals, value = word.partition("=")
        if option := _BY_NAME.get(name):
            yield option, value if equals or not option.has_value else _next_word(remaining, word)
        elif word[:2] in ("-D", "-U", "-I"):
            yield _BY_NAME[word[:2]], word[2:]
        else:
            yield None, word


def _next_word(words: Iterator[str], option: str) -> str:
    """Return the next word as the value of `option`."""
    value = next(words, None)
    if value is None:
        raise _error(f"ends with {option!r}, which takes a value")
    return value


def nvcc_options(options: Sequence[str]) -> tuple[str, ...]:
    """Return options for nvcc. Only the spelling of `-I` and `-rdc=true` changes."""
    result = []
    for option in options:
        _check_option(option, _OTHER_OUTPUT)
        is_separate = re.fullmatch(_RELOCATABLE, option)
        result.append("-rdc=true" if is_separate else re.sub(r"^--?include-path(?:=|$)", "-I", option))
    return tuple(result)


def host_options(options: Sequence[str]) -> tuple[str, ...]:
    """Return the options that nvcc would pass to the host compiler for a C++ source.

    These are macro definitions, included headers, include directories, the language standard, `-O`, and the values of
    `-Xcompiler`.
    """
    result: list[str] = []
    for option, text in _read_options(options):
        if option is not None and option.host is not None:
            result += _for_host(option.host, text)
        elif option is None and re.fullmatch(r"-O[0-3]", text):
            result.append(text)
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
    r"-limit|builtin-[a-z-]+|unicode|pch[a-z-]*|relocatable-device-code|resource-usage|source-in-ptx|keep)"
    r"(?:[= ].*)?|-[Gw]"
)


def cpu_options(options: Sequence[str]) -> tuple[str, ...]:
    """Translate NVRTC's options for g++. Options that only affect code for a GPU are dropped."""
    result: list[str] = []
    for option, text in _read_options(options):
        if option is not None:
            result += () if option.host is None else _for_host(option.host, text)
        elif re.fullmatch("--?fmad=false", text):
            result.append("-ffp-contract=off")
        elif not re.fullmatch(_FOR_GPU_ONLY, text):
            problem = f"has {text!r}, which has no meaning on the CPU; options for g++ go in "
            raise _error(problem, Argument("extra_cflags", is_name=True))
    return tuple(result)


def old_dialect(options: Sequence[str]) -> str:
    """Return the last `-std` among options for g++ if it is older than C++17, otherwise ""."""
    last = next((option for option in reversed(options) if option.startswith("-std=")), "")
    return last if re.search(r"\+\+(?:98|0.|1[014xyz])$", last) else ""
