"""What the benchmarks share: the machine's line, statistics, the table, and the raw numbers as JSON."""

from __future__ import annotations

import argparse
import ctypes
import importlib.metadata
import json
import math
import os
import platform
import re
import statistics
import sys
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

_PACKAGES = (
    *("torch", "apache-tvm-ffi", "triton", "cuda-core", "cuda-bindings", "cupy-cuda13x", "cupy-cuda12x", "cupy"),
    *("nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu12", "numpy", "ninja"),
)

Key = TypeVar("Key", bound=Hashable)

# A product of matrices with tiles in shared memory; n is a multiple of 16.
MATMUL = r"""
extern "C" __global__ void matmul(const float* a, const float* b, float* c, int n) {
  __shared__ float a_tile[16][16], b_tile[16][16];
  int row = blockIdx.y * 16 + threadIdx.y, column = blockIdx.x * 16 + threadIdx.x;
  float sum = 0;
  for (int k = 0; k < n; k += 16) {
    a_tile[threadIdx.y][threadIdx.x] = a[row * n + k + threadIdx.x];
    b_tile[threadIdx.y][threadIdx.x] = b[(k + threadIdx.y) * n + column];
    __syncthreads();
    for (int i = 0; i < 16; ++i) sum += a_tile[threadIdx.y][i] * b_tile[i][threadIdx.x];
    __syncthreads();
  }
  c[row * n + column] = sum;
}
"""


# ---- the machine ---------------------------------------------------------------------------------------------------


def machine_line() -> str:
    """Return GPU, driver, versions, Python and CPU in one line."""
    packages = (f"{name} {version}" for name in _PACKAGES if (version := _package_version(name)))
    parts = (
        *(_gpu(), f"jitload {_jitload_version()}", *packages),
        *(f"Python {platform.python_version()}", f"{_cpu()}, {platform.system()} {platform.release()}"),
    )
    return " | ".join(parts)


def _package_version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _jitload_version() -> str:
    try:
        import jitload
    except ImportError:
        sys.exit("jitload cannot be imported: install it, or run from the checkout with PYTHONPATH=.")
    return jitload.__version__


def _gpu() -> str:
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "no GPU, no driver"
    number = ctypes.c_int()
    driver.cuDriverGetVersion(ctypes.byref(number))
    version = f"driver {_driver_release()}CUDA {number.value // 1000}.{number.value % 1000 // 10}"
    name = ctypes.create_string_buffer(128)
    if driver.cuInit(0) != 0 or driver.cuDeviceGetName(name, len(name), 0) != 0:
        return f"no GPU, {version}"
    return f"{name.value.decode()}, {version}"


def _driver_release() -> str:
    """Return the release with a space behind it, `580.95 `, where the system tells."""
    try:
        text = Path("/proc/driver/nvidia/version").read_text()
    except OSError:
        return ""
    found = re.search(r"\b(\d{3,}\.\d+(\.\d+)?)\b", text)
    return f"{found[1]} " if found else ""


def _cpu() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        text = ""
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    cores = len(re.findall(r"^processor\s*:", text, re.MULTILINE))
    return f"{found[1] if found else platform.processor() or platform.machine()} ({cores} cores)"


def native_arch() -> str | None:
    """Return the GPU's architecture as jitload names it, `sm_90a`, or None without a GPU."""
    from jitload.toolchain.arch import current_capability

    capability = current_capability()
    if capability is None:
        return None
    major, minor = capability
    return f"sm_{major}{minor}{'a' if major >= 9 else ''}"


def dotted(arch: str) -> str:
    """Return `9.0a` for `sm_90a`: the form of TORCH_CUDA_ARCH_LIST and TVM_FFI_CUDA_ARCH_LIST."""
    digits, suffix = re.fullmatch(r"sm_(\d+)([af]?)", arch).groups()  # type: ignore[union-attr]  # jitload's own form
    return f"{digits[:-1]}.{digits[-1]}{suffix}"


def set_build_environment(arch: str) -> None:
    """Tell the peers that run nvcc where the toolkit is and what to build for, unless the environment does."""
    toolkit = Path("/usr/local/cuda")  # they take nvcc's folder for the toolkit's, wrongly where it is a link
    if "CUDA_HOME" not in os.environ and (toolkit / "bin" / "nvcc").exists():
        os.environ["CUDA_HOME"] = str(toolkit)
    for name in ("TORCH_CUDA_ARCH_LIST", "TVM_FFI_CUDA_ARCH_LIST"):
        os.environ.setdefault(name, dotted(arch))


# ---- numbers -------------------------------------------------------------------------------------------------------


def median(samples: Sequence[float]) -> float:
    """Return the median."""
    return statistics.median(samples)


def p95(samples: Sequence[float]) -> float:
    """Return the 95th percentile by nearest rank: the largest of fewer than 20 samples."""
    ordered = sorted(samples)
    return ordered[max(0, math.ceil(0.95 * len(ordered)) - 1)]


def make_library_parser(description: str | None) -> argparse.ArgumentParser:
    """Return a parser with the options of a benchmark that compares libraries, such as those of two checkouts."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--save-library", type=Path, metavar="PATH")
    parser.add_argument("--library", type=Path, action="append", default=[], metavar="PATH")
    return parser


def least_ns(
    cases: Mapping[Key, tuple[Callable[..., Any], Sequence[tuple[Any, ...]]]], rounds: int
) -> dict[Key, float]:
    """Return the least time of a call in each case: of a function, with each of several arguments in turn.

    The cases take turns, so that a change of the machine's speed affects all.
    """
    best = dict.fromkeys(cases, float("inf"))
    for _ in range(rounds):
        for case, (function, arguments) in cases.items():
            repeated = [*arguments] * (2000 // len(arguments))
            started = time.perf_counter_ns()
            for args in repeated:
                function(*args)
            best[case] = min(best[case], (time.perf_counter_ns() - started) / len(repeated))
    return best


def attempt(make: Callable[[], Any]) -> tuple[Any, str]:
    """Return what `make` makes and "", or None and in one line why it cannot: a missing peer must not end a run."""
    try:
        return make(), ""
    except ModuleNotFoundError as error:
        return None, f"not installed ({error.name})"
    except Exception as error:  # noqa: BLE001  a peer may raise anything, and the table says what
        return None, one_line(f"{type(error).__name__}: {error}")


def one_line(text: str, width: int = 110) -> str:
    """Return the text on one line, shortened to `width`."""
    joined = " ".join(text.split())
    return joined if len(joined) <= width else joined[: width - 1] + "…"


# ---- output --------------------------------------------------------------------------------------------------------


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table: the first column to the left, the others to the right, the last, notes, to the left."""
    widths = [max(len(row[i]) for row in (columns, *rows)) for i in range(len(columns))]
    last = len(columns) - 1
    for row in (columns, ["-" * width for width in widths], *rows):
        cells = (
            text.ljust(width) if i in (0, last) else text.rjust(width)
            for i, (text, width) in enumerate(zip(row, widths, strict=True))
        )
        print("  ".join(cells).rstrip())


def make_parser(description: str | None, *, peers: bool = True) -> argparse.ArgumentParser:
    """Return a parser with the options that the benchmarks share."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--json", type=Path, metavar="PATH", help="write the raw numbers there")
    if peers:
        meaning = "only peers whose names hold one of these words; a word that fits none lists the names"
        parser.add_argument("--peers", type=_words, metavar="A,B", default=[], help=meaning)
    return parser


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def chosen(names: Sequence[str], words: Sequence[str]) -> list[str]:
    """Return the names that hold one of the words; all of them without words."""
    found = [name for name in names if not words or any(word in name for word in words)]
    if not found:
        sys.exit(f"--peers {','.join(words)} fits none of: {', '.join(names)}")
    return found


def write_json(path: Path | None, numbers: dict[str, Any]) -> None:
    """Write the raw numbers, if a path was given."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(numbers, indent=1) + "\n")
