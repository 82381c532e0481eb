"""Reads NVRTC's messages, gives advice on them, and reads the report of ptxas among them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from jitload.cuda.predefined import UNDECLARED
from jitload.element_types import ELEMENT_TYPES
from jitload.errors import Diagnostic, find_diagnostics, nearest_name
from jitload.toolchain.cuda import extra_of
from jitload.words import Argument, Words

_DIAGNOSTIC = (
    r"(?m)^(?P<file>[^\n]*?)\((?P<line>\d+)\): (?P<severity>catastrophic error|error|warning|remark|note)"
    r"(?: #[\w-]+)?: (?P<message>.*)$"
)
_PTXAS_ERROR = r"(?m)^ptxas (?P<file>[^\n]*?), line (?P<line>\d+); (?P<severity>error)\s*: (?P<message>.*)$"
# The names that people write for the types of narrow floats that a header of CUDA's declares, beside `fp16` and so on.
_NARROW_FLOATS = {"bf16": "bfloat162?", "fp16": "half2?|float16"}
_UNKNOWN_NAME = r"identifier \"(\w+)\" is undefined|[\u2018'](\w+)[\u2019'] (?:was not|has not|does not)"
_MISSING_HEADER = r'(?:cannot|could not) open source file "(?:\./)?([^"]+)"'
_FOR_HOST_CODE = r"(?:(torch|ATen|c10)|pybind11|tvm|dlpack)/"
_HOST_FUNCTION = "is considered a host function"
# Names of the standard headers that are CCCL's.
_FROM_CCCL = (
    r"optional|nullopt|in_place(?:_t)?|span|bit_\w+|popcount|count[lr]_\w+|rot[lr]|has_single_bit|integral|"
    r"floating_point|same_as|convertible_to"
)
# Advice about a log, by a pattern that matches the log.
_HINTS = (
    (
        rf'namespace "std" has no member "(?:{_FROM_CCCL})"',
        (
            "This name needs its header, and -std=c++17 for <optional> or -std=c++20 for <bit>, <concepts> and <span>. "
            "These are headers of CUDA's C++ library: pip install 'jitload[cu13]'  ('jitload[cu12]' for CUDA 12)"
        ),
    ),
    (
        r"(?s)\A(?=.*unrecognized token).*[^\0-\x7f]",
        "Outside of comments and strings, NVRTC reads only ASCII: rename identifiers, and replace typographic quotes.",
    ),
    (
        "is not supported when compiling with NVRTC",
        Words(
            "Host code calls the functions of this header, and nvcc compiles them: pass the source to ",
            *(Argument("load_inline()"), " and name the host function that calls them, "),
            *(
                Argument("functions", "run", python="functions=['run']"),
                ". Kernels call those of cub/block and cub/warp.",
            ),
        ),
    ),
    ("annotation on lambda", "Remove __device__ from the lambda: within a kernel, it runs on the GPU without it."),
    (
        rf"(?s)\A(?!.*{_HOST_FUNCTION}).*device-side kernel launch could not be processed",
        (
            "NVRTC cannot compile kernels that launch kernels. For nvcc, name a host function that launches them, "
            "functions=['run'], and pass extra_cuda_cflags=['-rdc=true'] and extra_ldflags=['-lcudadevrt']."
        ),
    ),
    (
        "unrecognized option",
        Words(
            "NVRTC does not have all options of nvcc, and fast_compile=True needs CUDA 12.9: remove this option from ",
            *(Argument("extra_cuda_cflags", is_name=True), "."),
        ),
    ),
)


def parse_diagnostics(log: str) -> tuple[Diagnostic, ...]:
    """Return the messages of a log of NVRTC or nvcc, and then the errors of ptxas in it."""
    return find_diagnostics(_DIAGNOSTIC, log) + find_diagnostics(_PTXAS_ERROR, log)


def arch_advice(number: int, oldest: int, major: int) -> str:
    """Return advice about an architecture that NVRTC does not know.

    `number` is the architecture as an integer: 90 for sm_90. `oldest` is the oldest architecture that NVRTC knows.
    `major` is NVRTC's CUDA version.
    """
    if number < oldest:
        older = ", or install an older NVRTC (pip install 'jitload[cu12]') and set JITLOAD_NVRTC=12"
        is_in_cuda_12 = major > 12 and number >= 50
        return f"Name another architecture{older if is_in_cuda_12 else ''}."
    newest = ", or 'jitload[cu13]' without JITLOAD_NVRTC=12" if major == 12 else ""
    return f"Install a newer one (pip install -U {extra_of(major)}{newest}), or name another architecture."


def hint_for(log: str, options: Sequence[str]) -> str:
    """Return advice about a failed compile, or "" if there is none."""
    hints = (hint for pattern, hint in _HINTS if re.search(pattern, log))
    return type_hint(log) or target_hint(log) or next(hints, "") or _hint(log, options)


def type_hint(log: str) -> str:
    """Return a hint if an unknown name in the log looks like a type of 16-bit or 8-bit floats, otherwise ""."""
    for match in re.finditer(_UNKNOWN_NAME, log):
        for header in dict.fromkeys(row.header for row in ELEMENT_TYPES.values() if row.header):
            stem = header.removeprefix("cuda_").removesuffix(".h")
            names = rf"(?:__)?(?:nv_)?(?:{stem}(?:_\w+|x\d\w+)?|{_NARROW_FLOATS.get(stem, stem)})"
            if re.fullmatch(names, match[1] or match[2]):
                types = ", ".join(row.cpp for row in ELEMENT_TYPES.values() if row.header == header)
                return f"#include <{header}> declares CUDA's types of this kind: {types}."
    return ""


def target_hint(log: str) -> str:
    """Return a hint if ptxas rejected an instruction that other architectures have, otherwise ""."""
    if "not supported on .target 'sm_" not in log:
        return ""
    return Words("The source needs another architecture: name it in ", Argument("arch"), " or JITLOAD_ARCH.")


def _hint(log: str, options: Sequence[str]) -> str:
    if missing := missing_header(log):
        return missing_header_hint(missing, "NVRTC")
    macros = [option for option in options if option.startswith("-D")]
    if macros and log.startswith("__nv_nvrtc_builtin_header"):
        return f"NVRTC's own header also reads one of the macros {', '.join(macros)}: #define it in the source instead."
    if '"__global__" does not apply here' in log and (undeclared := re.search(UNDECLARED, log)):
        return f"The type {undeclared[1]!r} is not declared: define it before the kernel, or include its header."
    if _HOST_FUNCTION in log:
        return Words(
            "Functions that kernels call need __device__. Put host functions such as main() between "
            "#ifndef __CUDACC_RTC__ and #endif, where NVRTC does not read them. To call host functions from Python, ",
            *("name them, ", Argument("functions", "run", python="functions=['run']")),
            ", in cuda_sources= or in cpp_sources=.",
        )
    from jitload.toolchain.cutlass import cutlass_hint

    return cutlass_hint(log)


def has_host_function(log: str) -> bool:
    """Return whether NVRTC has rejected a host function."""
    return _HOST_FUNCTION in log


def missing_function_hint(log: str, names: Iterable[str], texts: Iterable[str]) -> str:
    """Return a hint about a misspelled name in `functions=`, or "" if there is no sign of this mistake.

    If `functions=` misspells a host function, jitload may take the source for kernels alone. NVRTC then rejects the
    host function. The hint needs two signs: this error of NVRTC in `log`, and one of `names` that is not a word in
    `texts`.
    """
    words = set(re.findall(r"\w+", " ".join(texts)))
    missing = next((name for name in names if name not in words), "")
    if not missing or _HOST_FUNCTION not in log:
        return ""
    suggestion = nearest_name(missing, words)
    advice = f" Did you mean {suggestion!r}?" if suggestion else ""
    return Words(Argument("functions"), f" has {missing!r}, which is not in the source.{advice}")


def missing_header(log: str) -> str:
    """Return the name of the header that NVRTC did not find, or "" if the log names none."""
    match = re.search(_MISSING_HEADER, log)
    return match[1] if match else ""


def missing_header_hint(header: str, compiler: str) -> str:
    """Return advice about a header that a compiler of device code did not find."""
    from jitload.toolchain.cutlass import cutlass_hint

    if hint := cutlass_hint(header):
        return hint
    if header.startswith("curand"):
        return f"{header!r} was not found. Install it with: pip install nvidia-curand  (nvidia-curand-cu12 for CUDA 12)"
    if match := re.match(_FOR_HOST_CODE, header):
        return Words(
            f"<{header}> is for host code, and {compiler} compiles only the kernels: leave the bindings out. ",
            *("For GPUs, ", "jitload.cpp_extension" if match[1] else Argument("load_inline()")),
            " builds the whole source.",
        )
    return Words(
        *(
            f"{compiler} has no {header!r}: pass its directory in ",
            Argument("extra_include_paths", python="extra_include_paths=[…]"),
        ),
        ". CUDA's own headers are installed with: pip install 'jitload[cu13]'  ('jitload[cu12]' for CUDA 12)",
    )


# ---- the report of ptxas ---------------------------------------------------------------------------------------

# This option asks for the report. NVRTC and nvJitLink accept it, and it changes neither the code nor, measurably, the
# time.
REPORT = "--ptxas-options=-v"
_KERNEL = re.compile(r"Compiling entry function '([^']+)'")
_COMPILED_FUNCTION = re.compile(r"Function properties for (\S+)\n.* (\d+) bytes spill stores")
# Matches the lines of the report. Notes with a number, such as `ptxas info : (C7510) Potential Performance Loss`, do
# not match, because ptxas also prints them without the option.
_REPORT_LINE = re.compile(r"^ptxas (?:info    : (?!\(C\d)|        \.).*(?:\n ?|\Z)", re.MULTILINE)
_ASKS_FOR_REPORT = re.compile(r"(?:-Xptxas|--ptxas-options)[= ](?:\S*,)?(?:-v|--verbose)\b")


def read_spills(log: str, *, is_linked: bool = False) -> dict[str, int]:
    """Return a dictionary from kernels' symbols to the bytes that a thread spills.

    NVRTC compiles a called function again for each kernel that calls it. The log lists the function below the kernel,
    and the bytes of both are added.

    A linker (`is_linked`) compiles a called function once, and its log does not name the callers. If such a function
    spills, the bytes of the kernels are unknown, and the dictionary is empty.
    """
    parts = _KERNEL.split(log)
    kernels = dict(zip(parts[1::2], map(_COMPILED_FUNCTION.findall, parts[2::2]), strict=True))
    if is_linked and any(name not in kernels and int(stores) for name, stores in _COMPILED_FUNCTION.findall(log)):
        return {}
    return {kernel: sum(int(stores) for _, stores in functions) for kernel, functions in kernels.items()}


def without_report(log: str, options: Sequence[str]) -> str:
    """Return the log without the report of ptxas, unless the user's options ask for the report."""
    return log if _ASKS_FOR_REPORT.search(" ".join(options)) else _REPORT_LINE.sub("", log).lstrip("\n")
