"""Sources that the NVRTC headers of jitload must compile, and the shortest driver that compiles them.

    python tests/nvrtc_matrix.py KIT_DIR...

prints one row a case and one column a kit; a kit is a directory made by `pip install --target` with NVIDIA's wheels.
"""

# ruff: noqa: T201  the script prints its table
from __future__ import annotations

import ctypes
import importlib.util
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

TESTS_DIR = Path(__file__).parent
sys.path.insert(0, str(TESTS_DIR.parent))  # as a script it finds jitload beside the tests

from jitload.cuda.headers import BUILT_IN, headers_in_memory  # noqa: E402  behind the path

if TYPE_CHECKING:
    from collections.abc import Iterator

SHIM_DIR = TESTS_DIR.parent / "jitload" / "include" / "nvrtc"
KIT_INCLUDES = (
    "cuda_runtime/include",
    "cuda_nvcc/include",
    "cuda_cccl/include",
    "cu13/include",
    "cu13/include/cccl",
)
INVALID_OPTION = 5
EMPTY_KERNEL = 'extern "C" __global__ void kernel() {}\n'


@dataclass(frozen=True)
class Kit:
    """An NVRTC library and the header directories of the same CUDA release."""

    library: Path
    include_dirs: tuple[Path, ...]

    def has(self, header: str) -> bool:
        """Say whether the kit's own headers include this one."""
        return any((folder / header).is_file() for folder in self.include_dirs)


@dataclass(frozen=True)
class Case:
    """One source to compile; `needs` are headers of the kit without which it is skipped."""

    name: str
    source: str
    dialect: str = "c++17"
    options: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Answer:
    """What one compile gave."""

    code: int
    log: str
    cubin: bytes
    seconds: float


def find_kit(nvidia_dir: Path) -> Kit | None:
    """Return the kit below a directory `nvidia`, as wheels lay it out, or None."""
    libraries = sorted(nvidia_dir.glob("*/lib/libnvrtc.so.1[0-9]"))
    if not libraries:
        return None
    return Kit(libraries[-1], tuple(nvidia_dir / name for name in KIT_INCLUDES if (nvidia_dir / name).is_dir()))


def installed_kit() -> Kit | None:
    """Return the kit of JITLOAD_TEST_KIT or of this environment, or None."""
    if chosen := os.environ.get("JITLOAD_TEST_KIT"):
        return find_kit(Path(chosen) / "nvidia")
    spec = importlib.util.find_spec("nvidia")
    roots = (spec.submodule_search_locations or []) if spec else []
    return next((kit for root in roots if (kit := find_kit(Path(root)))), None)


def include_dirs(kit: Kit, user_dirs: tuple[Path, ...] = ()) -> tuple[Path, ...]:
    """Return the directories in the order of jitload: the shims, the user's include paths, the kit.

    The shims come before the include paths because /usr/include is often among those, and glibc's headers cannot work
    under NVRTC: they define `__attribute__` away, and `__device__` with it.
    """
    return (SHIM_DIR, *user_dirs, *kit.include_dirs)


def load_library(kit: Kit) -> ctypes.CDLL:
    """Open NVRTC; 13.0 does not find its builtins by itself."""
    for builtins in kit.library.parent.glob("libnvrtc-builtins.so.1*"):
        ctypes.CDLL(str(builtins))
    return ctypes.CDLL(str(kit.library))


def compile_case(nvrtc: ctypes.CDLL, case: Case, directories: tuple[Path, ...]) -> Answer:
    """Compile one case to a cubin for a data-centre GPU that every kit knows."""
    include = (f"-I{directory}" for directory in directories)
    options = ("-arch=sm_90", "--modify-stack-limit=false", f"-std={case.dialect}", *case.options, *include)
    headers = headers_in_memory(directories)
    names = (ctypes.c_char_p * len(headers))(*(name.encode() for name, _ in headers))
    texts = (ctypes.c_char_p * len(headers))(*(text.encode() for _, text in headers))
    program = ctypes.c_void_p()
    size = ctypes.c_size_t()
    nvrtc.nvrtcCreateProgram(ctypes.byref(program), case.source.encode(), b"kernel.cu", len(headers), texts, names)
    try:
        words = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
        start = time.thread_time()  # of the processor: others may have it meanwhile
        code = int(nvrtc.nvrtcCompileProgram(program, len(options), words))
        seconds = time.thread_time() - start
        nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
        log = ctypes.create_string_buffer(size.value)
        nvrtc.nvrtcGetProgramLog(program, log)
        cubin = ctypes.create_string_buffer(0)
        if code == 0:
            nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size))
            cubin = ctypes.create_string_buffer(size.value)
            nvrtc.nvrtcGetCUBIN(program, cubin)
        return Answer(code, log.value.decode().strip(), cubin.raw, seconds)
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def shim_headers() -> dict[str, str]:
    """Return names and texts of the headers that NVRTC lacks, without corrections of CUDA's and stand-ins for them."""
    files = {path.relative_to(SHIM_DIR).as_posix(): path for path in SHIM_DIR.rglob("*") if path.is_file()}
    texts = {name: path.read_text() for name, path in files.items() if not name.startswith("_jitload/")}
    texts |= {name: text for name, text in headers_in_memory(()) if "<./" not in text and name not in BUILT_IN.split()}
    return dict(sorted(texts.items()))


def includes(*headers: str) -> str:
    """Return the include lines for these headers."""
    return "".join(f"#include <{header}>\n" for header in headers)


# CUDA's own headers. Groups, because one with CCCL costs about a second however many of its headers it includes.
CUDA_HEADERS = {
    "toolkit": "cuda.h cuda_fp16.h cuda_bf16.h cuda_fp8.h cuda_runtime.h cuda_runtime_api.h device_launch_parameters.h"
    " cuComplex.h vector_types.h math_constants.h cudaTypedefs.h",
    "mma": "mma.h",
    "pipeline": "cuda_pipeline.h cuda_pipeline_primitives.h cuda_awbarrier.h",
    "cooperative_groups": "cooperative_groups.h cooperative_groups/reduce.h cooperative_groups/scan.h"
    " cooperative_groups/memcpy_async.h",
    "cuda_std": "cuda/std/cstdint cuda/std/cstddef cuda/std/climits cuda/std/cfloat cuda/std/type_traits"
    " cuda/std/limits cuda/std/cmath cuda/std/array cuda/std/tuple cuda/std/utility cuda/std/complex cuda/std/chrono"
    " cuda/std/functional cuda/std/bit cuda/std/span cuda/std/ctime cuda/std/cstdlib cuda/std/cassert",
    "cuda": "cuda/atomic cuda/barrier cuda/ptx cuda/pipeline cuda/semaphore cuda/functional",
    "cub": "cub/block/block_reduce.cuh cub/block/block_scan.cuh cub/block/block_radix_sort.cuh"
    " cub/warp/warp_reduce.cuh",
}
MERGED_HEADERS = {
    "cuda_headers": " ".join(CUDA_HEADERS[group] for group in ("toolkit", "mma", "pipeline")),
    "cccl_headers": " ".join(CUDA_HEADERS[group] for group in ("cuda_std", "cuda", "cub", "cooperative_groups")),
}
# CUDA 12.4's CCCL wheel has lost every header without a suffix, and with them all of CCCL.
GROUP_NEEDS = {
    "toolkit": ("cuda_fp16.h",),
    "mma": ("mma.h", "crt/mma.h"),
    "pipeline": ("cuda_pipeline.h",),
    "cooperative_groups": ("cooperative_groups.h",),
    "cuda_std": ("cuda/std/cstdint",),
    "cuda": ("cuda/std/cstdint",),
    "cub": ("cub/block/block_reduce.cuh", "cuda/std/cstdint"),
    "cuda_headers": ("cuda_fp16.h", "crt/mma.h"),
    "cccl_headers": ("cooperative_groups.h", "cub/block/block_reduce.cuh", "cuda/std/cstdint"),
}
CUDA_STD_USE = """
static_assert(cuda::std::is_same<cuda::std::int64_t, long>::value, "");
__global__ void both(cuda::std::array<float, 2> a, std::array<float, 2> b, cuda::std::complex<float>* z) {
  const auto [x, y] = cuda::std::make_tuple(a[0], b[1]);
  const auto [v, w] = std::make_tuple(x, y);
  auto [k, l] = b;
  *z = cuda::std::complex<float>(v + k, w + l + cuda::std::sqrt(x) + cuda::std::numeric_limits<float>::max());
}
"""
STANDARD_USE = """
__global__ void standard(int64_t* a, uint64_t b, size_t n) {
  static_assert(std::is_same<int64_t, long>::value && std::is_same<std::uint64_t, unsigned long>::value, "");
  static_assert(std::is_same<decltype(INT64_MAX), long>::value && std::is_same<decltype(LONG_MAX), long>::value, "");
  static_assert(INFINITY > FLT_MAX && NAN != NAN && offsetof(div_t, rem) == 4, "");
  a[n] = static_cast<int64_t>(std::numeric_limits<int64_t>::max() + std::sqrt(float(b)));
}
"""


def alone_cases() -> Iterator[Case]:
    """Each shim by itself, twice, so that its guard is tested; all of them in each dialect; options that matter."""
    headers = shim_headers()
    cheap = [header for header in headers if header != "optional"]
    yield from (Case(f"alone/{header}", includes(header, header) + EMPTY_KERNEL) for header in cheap)
    for header in cheap:
        if "namespace" in headers[header]:
            yield Case(f"alone-c++11/{header}", includes(header) + EMPTY_KERNEL, "c++11")
            yield Case(f"alone-c++20/{header}", includes(header) + EMPTY_KERNEL, "c++20")
    yield Case(
        "alone/optional", includes("optional") + "__device__ std::optional<int> x;", needs=("cuda/std/optional",)
    )
    for dialect in ("c++11", "c++14", "c++17", "c++20", "c++23"):
        yield Case(f"all/{dialect}", includes(*cheap) + STANDARD_USE, dialect)
        yield Case(f"all-reversed/{dialect}", includes(*reversed(cheap)) + STANDARD_USE, dialect)


def meaning_cases() -> Iterator[Case]:
    """The sources beside this file, which check what the headers mean."""
    dialects = {"limits": 0, "device": 0, "type_traits": 2, "library": 2}
    for name, oldest in dialects.items():
        source = (TESTS_DIR / "nvrtc_sources" / f"{name}.cu").read_text()
        for dialect in ("c++11", "c++14", "c++17", "c++20", "c++23")[oldest:]:
            yield Case(f"meaning/{name}/{dialect}", source, dialect)
        for option in ("--use_fast_math", "-default-device", "--fmad=false"):
            yield Case(f"meaning/{name}/{option.strip('-')}", source, options=(option,))


def coexistence_cases(groups: dict[str, str]) -> Iterator[Case]:
    """CUDA's headers alone, before the shims and after them."""
    shims = includes(*(header for header in shim_headers() if header != "optional"))
    for group, names in groups.items():
        cuda, needs = includes(*names.split()), GROUP_NEEDS[group]
        use = STANDARD_USE + (CUDA_STD_USE if "cuda/std/tuple" in names else "")
        yield Case(f"with/{group}/alone", cuda + EMPTY_KERNEL, needs=needs)
        yield Case(f"with/{group}/before", cuda + shims + use, needs=needs)
        yield Case(f"with/{group}/after", shims + cuda + use, needs=needs)
        # CCCL 3, which CUDA 13's cooperative_groups.h reads too, wants C++17 at least.
        dialect = "c++11" if group in {"toolkit", "mma", "pipeline", "cuda_headers"} else "c++20"
        yield Case(f"with/{group}/{dialect}", cuda + shims + STANDARD_USE, dialect, needs=needs)


def quick_cases() -> list[Case]:
    """Return every case that must compile without a complaint, with few that read CCCL: each costs a second."""
    return [*alone_cases(), *meaning_cases(), *coexistence_cases(MERGED_HEADERS)]


def all_cases() -> list[Case]:
    """Return the same cases with each group of CUDA's headers for itself."""
    return [*alone_cases(), *meaning_cases(), *coexistence_cases(CUDA_HEADERS)]


def complaint(answer: Answer) -> str:
    """Return the log when the compile failed or speaks of the source or of the shims; a kit may warn of itself."""
    files = {line.partition("(")[0] for line in answer.log.splitlines()}
    ours = answer.code != 0 or not files.isdisjoint({"kernel.cu", *dict(headers_in_memory(()))})
    ours = ours or str(SHIM_DIR) in answer.log
    return answer.log or f"NVRTC error {answer.code}" if ours else ""


def run_case(nvrtc: ctypes.CDLL, kit: Kit, case: Case) -> tuple[str, Answer | None]:
    """Return `ok`, `FAIL` or why the case was skipped, with the answer when there is one."""
    if missing := [header for header in case.needs if not kit.has(header)]:
        return f"no {missing[0]}", None
    answer = compile_case(nvrtc, case, include_dirs(kit))
    if answer.code == INVALID_OPTION and case.dialect == "c++23":
        return "no c++23", None
    return ("FAIL" if complaint(answer) else "ok"), answer


def print_one_kit(directory: str) -> int:
    """Run every case on one kit, in this process: the table's child."""
    kit = find_kit(Path(directory) / "nvidia")
    if kit is None:
        print(f"{directory} holds no nvidia/*/lib/libnvrtc.so", file=sys.stderr)
        return 2
    nvrtc, failures = load_library(kit), 0
    for case in all_cases():
        status, answer = run_case(nvrtc, kit, case)
        cost = f" {answer.seconds * 1e3:.0f} ms" if answer and status == "ok" else ""
        print(f"{case.name}\t{status}{cost}")
        if answer and status == "FAIL":
            failures += 1
            print(f"{case.name}:\n{answer.log}", file=sys.stderr)
    return int(failures > 0)


def main(directories: list[str]) -> int:
    """Print the table kit by case; each kit has a process of its own, as two NVRTCs do not share one well."""
    columns, code = [], 0
    for directory in directories:
        child = subprocess.run(
            [sys.executable, __file__, "--one", directory], stdout=subprocess.PIPE, text=True, check=False
        )
        columns.append(dict(line.split("\t") for line in child.stdout.splitlines()))
        code = code or child.returncode
    print(f"{'':40}" + "".join(f"{Path(directory).name:>22}" for directory in directories))
    for case in all_cases():
        print(f"{case.name:40}" + "".join(f"{column.get(case.name, '-'):>22}" for column in columns))
    return code


if __name__ == "__main__":
    arguments = sys.argv[1:]
    sys.exit(print_one_kit(arguments[1]) if arguments[:1] == ["--one"] else main(arguments))
