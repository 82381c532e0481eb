"""Translates `extra_cuda_cflags`, which is written for nvcc, into options of the compiler that is used."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from jitload.errors import Argument, JitLoadError, Words
from jitload.request.arguments import split_includes

# This and the following regular expressions are texts, which are compiled at their first use, because most calls have
# no options. This one matches options of nvcc that have no meaning or another meaning to NVRTC, such as options for the
# host compiler.
_IGNORED = (
    r"-O[0-3]|--?expt-relaxed-constexpr|--?(?:expt-)?extended-lambda|-Xcompiler=.*|--compiler-options=.*"
    r"|--?threads=.*|-t=\d+"
)
_TAKES_VALUE = {
    "-Xptxas": "--ptxas-options=", "--ptxas-options": "--ptxas-options=", "-Xcompiler": None,
    "--compiler-options": None,
    "-std": "--std=", "--std": "--std=", "-maxrregcount": "--maxrregcount=", "--maxrregcount": "--maxrregcount=",
    "-D": "-D", "-U": "-U", "-I": "-I", "--include-path": "-I", "--threads": None, "-t": None,
    "-include": "--pre-include=",
}  # fmt: skip
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
_FOR_HOST_COMPILER = ("-Xcompiler", "--compiler-options")
# Options that nvcc passes on to the host compiler, each with the way in which the host compiler spells it.
_FOR_BOTH_COMPILERS = {
    "-D": "-D", "--define-macro": "-D", "-U": "-U", "--undefine-macro": "-U", "-I": "-I", "--include-path": "-I",
    "-isystem": "-isystem", "--system-include": "-isystem", "-include": "-include", "--pre-include": "-include",
    "-std": "-std=", "--std": "-std=",
}  # fmt: skip


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
            raise JitLoadError(
                Words(
                    *(
                        Argument("extra_cuda_cflags", is_name=True),
                        f" has {option!r}, which does not name an architecture ",
                    ),
                    *("such as sm_90a; ", Argument("arch"), " takes architectures, too"),
                )
            )
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
    remaining = iter(options)
    for option in remaining:
        _check_option(option)
        if re.fullmatch(_OUTPUT, option):
            raise _output_error(option)
        if option in _TAKES_VALUE:
            value = _next_word(remaining, option)
            if (prefix := _TAKES_VALUE[option]) is not None:
                result.append(prefix + value)
        elif not re.fullmatch(f"{_IGNORED}|{_RELOCATABLE}", option):
            result.append(re.sub("^--include-path=", "-I", option))
    return tuple(result)


def _next_word(words: Iterator[str], option: str) -> str:
    """Return the next word as the value of `option`."""
    value = next(words, None)
    if value is None:
        raise JitLoadError(
            Words(Argument("extra_cuda_cflags", is_name=True), f" ends with {option!r}, which takes a value")
        )
    return value


def _output_error(option: str) -> JitLoadError:
    return JitLoadError(
        Words(
            Argument("extra_cuda_cflags", is_name=True),
            f" has {option!r}: jitload chooses the type and the path of the output; leave the option out",
        )
    )


def nvcc_options(options: Sequence[str]) -> tuple[str, ...]:
    """Return options for nvcc. Only the spelling of `-I` and `-rdc=true` changes."""
    result = []
    for option in options:
        _check_option(option)
        if re.fullmatch(_OTHER_OUTPUT, option):
            raise _output_error(option)
        is_separate = re.fullmatch(_RELOCATABLE, option)
        result.append("-rdc=true" if is_separate else re.sub(r"^--?include-path(?:=|$)", "-I", option))
    return tuple(result)


def host_options(options: Sequence[str]) -> tuple[str, ...]:
    """Return the options that nvcc would pass to the host compiler for a C++ source.

    These are macro definitions, included headers, include directories, the language standard, `-O`, and the values of
    `-Xcompiler`.
    """
    result: list[str] = []
    remaining = iter(options)
    for option in remaining:
        name, equals, value = option.partition("=")
        prefix = _FOR_BOTH_COMPILERS.get(name)
        if prefix is not None or name in _FOR_HOST_COMPILER:
            value = value if equals else _next_word(remaining, option)
            result += value.split(",") if prefix is None else (prefix + value,)
        elif re.match(r"-[DUI]|-O[0-3]$", option):
            result.append(option)
    return tuple(option for option in result if option)


def _check_option(option: str) -> None:
    if re.fullmatch(_LINK_TIME, option):
        raise JitLoadError(
            Words(
                Argument("extra_cuda_cflags", is_name=True),
                f" has {option!r}: jitload does not link device code; #include the code instead",
            )
        )


# ---- kernels on the CPU ----------------------------------------------------------------------------------------

_PASSED_TO_GCC = r"(?s)-[DU].*|--?std=.*"
_TRANSLATED_FOR_GCC = {"--fmad=false": "-ffp-contract=off", "-fmad=false": "-ffp-contract=off"}
_FOR_GPU_ONLY = (
    r"(?s)--?(?:use_fast_math|fmad|ftz|prec-div|prec-sqrt|maxrregcount|ptxas-options|restrict|extra-device-vectorization"
    r"|device-debug|generate-line-info|lineinfo|dopt|split-compile|minimal|default-device|device-int128|time|fast-compile"
    r"|device-as-default-execution-space|no-source-include|no-cache|frandom-seed|optimization-info|version-ident|Ofast"
    r"|display-error-number|no-display-error-number|diag-[a-z-]+|disable-warnings|Werror|brief-diagnostics|modify-stack"
    r"-limit|builtin-[a-z-]+|unicode|pch[a-z-]*|relocatable-device-code|resource-usage|source-in-ptx|keep)"
    r"(?:[= ].*)?|-[Gw]"
)


def cpu_options(options: Sequence[str]) -> tuple[str, ...]:
    """Translate NVRTC's options for g++. Options that only affect code for a GPU are dropped."""
    result = []
    for option in options:
        if option.startswith("--pre-include="):
            result += ["-include", option.removeprefix("--pre-include=")]
        elif option in _TRANSLATED_FOR_GCC:
            result.append(_TRANSLATED_FOR_GCC[option])
        elif re.fullmatch(_PASSED_TO_GCC, option):
            result.append(option.replace("--std", "-std", 1))
        elif not re.fullmatch(_FOR_GPU_ONLY, option):
            raise JitLoadError(
                Words(
                    *(
                        Argument("extra_cuda_cflags", is_name=True),
                        f" has {option!r}, which has no meaning on the CPU; ",
                    ),
                    *("options for g++ go in ", Argument("extra_cflags", is_name=True)),
                )
            )
    return tuple(result)
