"""The commands that help when something fails: `jitload doctor` and `jitload explain`.

`doctor` shows which tools were found, what is missing and how to get it, and whether a kernel can be built and run.
`explain` shows what the code of an error means.
"""

from __future__ import annotations

import ctypes
import functools
import platform
import re
import time
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

import click

from jitload import __version__
from jitload.cli.output import format_size, json_option, print_result, table_lines
from jitload.errors import JitLoadError
from jitload.settings import Settings, read_settings

_KERNEL = 'extern "C" __global__ void count(int* x) { x[threadIdx.x] = threadIdx.x + 1; }'
# For the kernel on each device, the tools that other kernels need there.
_NEEDED = {"kernel on the CPU": ("C++ compiler", "ninja"), "kernel on the GPU": ("NVRTC",)}
_NEEDED_FOR_LIBRARIES = "needed for C++, PyTorch extension sources, kernels on the CPU, and shared libraries: "
_LINK, _TITLE = re.compile(r"\[([^\]]*)\]\([^)]*\)"), r"\1"  # in Markdown
_COUNT = 32  # the number of threads, each of which writes one number
_PACKAGES = {
    "apache-tvm-ffi": "jitload needs it: pip install apache-tvm-ffi",
    "torch": "needed only to pass torch's tensors",
    "triton": "needed only for Triton kernels: pip install triton",
    "cuda-bindings": "needed to compile for GPUs: pip install 'jitload[cu13]' (cu12 for CUDA 12)",
    "numpy": "needed only to pass NumPy's arrays",
}


class Finding(NamedTuple):
    """A line in the report of `jitload doctor`. If `is_good` is false, `advice` says what to do."""

    subject: str
    is_good: bool
    description: str
    advice: str = ""


@click.command("doctor")
@json_option
def doctor_command(*, as_json: bool) -> int:
    """Check that jitload works on this machine.

    Show which packages and tools were found, and which are missing. Build and run a kernel on the CPU, and on the GPU
    if there is one. The exit code is 0 if at least one of these kernels runs and the tools to build others like it are
    there, and 1 otherwise.
    """
    settings = read_settings()
    findings = [*_find_packages(), *_find_tools(settings)]
    runs = list(_try_kernels())
    usable = {row.subject for row in findings if row.is_good}
    # The kernels may come from the cache, so they say nothing about the tools.
    works = any(run.is_good and usable.issuperset(_NEEDED[run.subject]) for run in runs)
    report = [*findings, *runs]
    lines = [
        *table_lines(("", "", ""), [(row.subject, "ok" if row.is_good else "--", row.description) for row in report]),
        "",
        *(f"{row.subject}: {' '.join(row.advice.split())}" for row in report if not row.is_good),
        "jitload builds and runs kernels here." if works else "jitload cannot build and run kernels here.",
    ]
    print_result({"works": works, "findings": [row._asdict() for row in report]}, lines, as_json=as_json)
    return 0 if works else 1


def _find_packages() -> Iterator[Finding]:
    yield Finding("jitload", is_good=True, description=f"{__version__}, Python {platform.python_version()}")
    for name, advice in _PACKAGES.items():
        try:
            yield Finding(name, is_good=True, description=metadata.version(name))
        except metadata.PackageNotFoundError:
            yield Finding(name, is_good=False, description="not installed", advice=advice)


def _find_tools(settings: Settings) -> Iterator[Finding]:
    from jitload.cache.entry import open_cache
    from jitload.cache.listing import list_entries
    from jitload.toolchain.arch import current_capability
    from jitload.toolchain.cuda import find_cuda_toolchain
    from jitload.toolchain.cutlass import cutlass_version, find_cutlass
    from jitload.toolchain.host import find_compiler, find_ninja
    from jitload.toolchain.libraries import find_nvjitlink
    from jitload.toolchain.nvcc import find_nvcc

    def cache() -> str:
        directory = open_cache(settings)
        entries = list(list_entries(directory))
        return f"{directory}, {len(entries)} entries, {format_size(sum(entry.size for entry in entries))}"

    def nvcc() -> str:
        tool = find_nvcc(settings, open_cache(settings), name="doctor")
        return f"{tool.path}, {'.'.join(map(str, tool.version))}"

    def nvjitlink() -> str:
        path = find_nvjitlink(settings)
        if path is None:
            raise JitLoadError("needed only for PTX and LTO-IR: pip install nvidia-nvjitlink (-cu12 for CUDA 12)")
        return str(path)

    yield _check("cache", cache)
    compiler = functools.partial(find_compiler, settings, needs_gcc=current_capability() is None)
    yield _check("C++ compiler", lambda: " ".join(compiler().command), _NEEDED_FOR_LIBRARIES)
    yield _check("ninja", lambda: str(find_ninja(settings)), _NEEDED_FOR_LIBRARIES)
    yield _check("NVRTC", lambda: str(find_cuda_toolchain(settings).nvrtc_path))
    yield _check("nvcc", nvcc)
    yield _check("nvJitLink", nvjitlink)

    def cutlass() -> str:
        root = find_cutlass(settings.cutlass)
        return f"{'.'.join(map(str, cutlass_version(root)))}, {root}" if root else "not installed"

    yield _check("CUTLASS", cutlass)
    yield _check("driver", _describe_driver)


def _check(subject: str, describe: Callable[[], str], use: str = "") -> Finding:
    """Return a finding with the description of a tool. If there is an error, `use` says what the tool is for."""
    try:
        return Finding(subject, is_good=True, description=describe())
    except (RuntimeError, OSError) as error:  # RuntimeError: a failed launch, and jitload's own errors
        return Finding(subject, is_good=False, description="not usable", advice=f"{use}{error}")


def _describe_driver() -> str:
    from jitload.toolchain.arch import current_capability, driver_version

    version, capability = driver_version(), current_capability()
    if version is None:
        raise JitLoadError(
            "there is no NVIDIA driver, so kernels run on the CPU alone: --arch cpu, in Python arch='cpu'"
        )
    if capability is None:
        raise JitLoadError(f"the driver for CUDA {version[0]}.{version[1]} finds no GPU")
    return f"CUDA {version[0]}.{version[1]}, GPU with compute capability {capability[0]}.{capability[1]}"


def _try_kernels() -> Iterator[Finding]:
    from jitload.toolchain.arch import current_capability

    numbers = (ctypes.c_int * _COUNT)()
    yield _check("kernel on the CPU", lambda: _time_kernel("cpu", ctypes.addressof(numbers)))
    if current_capability() is not None:
        yield _check("kernel on the GPU", _run_on_gpu)


def _run_on_gpu() -> str:
    """Run the kernel on the GPU and return a text about the result. Managed memory makes torch unnecessary."""
    from jitload.cuda.bindings import check_driver, import_bindings

    driver = import_bindings("driver")
    checked = functools.partial(check_driver, problem="the driver cannot run a kernel")
    device = checked(driver.cuDeviceGet(0))
    checked(driver.cuCtxSetCurrent(checked(driver.cuDevicePrimaryCtxRetain(device))))
    flags = driver.CUmemAttach_flags.CU_MEM_ATTACH_GLOBAL
    address = int(checked(driver.cuMemAllocManaged(4 * _COUNT, flags)))
    try:
        return _time_kernel("native", address, synchronize=lambda: checked(driver.cuCtxSynchronize()))
    finally:
        driver.cuMemFree(address)
        driver.cuDevicePrimaryCtxRelease(device)


def _time_kernel(arch: str, address: int, synchronize: Callable[[], None] = lambda: None) -> str:
    """Load the kernel, run it on the memory at `address`, and check the result. Return a text with the load time."""
    from jitload.api import load_inline

    start = time.perf_counter()
    module = load_inline("doctor", cuda_sources=_KERNEL, arch=arch)
    seconds = time.perf_counter() - start
    module.count[1, _COUNT](ctypes.c_void_p(address))
    synchronize()
    numbers = list((ctypes.c_int * _COUNT).from_address(address))
    if numbers != list(range(1, _COUNT + 1)):
        raise JitLoadError(f"the kernel wrote {numbers} instead of 1 to {_COUNT}")
    return f"ready in {seconds:.2f} s, its result is right"


# ---- explain ---------------------------------------------------------------------------------------------------------


@click.command("explain")
@click.argument("code")
@json_option
def explain_command(code: str, *, as_json: bool) -> None:
    """Show what an error code such as JL-NVRTC means, and what to do."""
    sections = read_sections()
    name = code.upper()
    if name not in sections:
        raise click.BadParameter(f"{code!r} is not a code; the codes are {', '.join(sections)}", param_hint="CODE")
    lines = [name, "", *_LINK.sub(_TITLE, sections[name]).splitlines(), ""]
    print_result({"code": name, "text": sections[name]}, lines, as_json=as_json)


def read_sections() -> dict[str, str]:
    """Return a dict from error codes to their sections of the manual."""
    package = Path(__file__).parents[1]
    packaged = package / "troubleshooting.md"  # the page's path in a wheel; in a checkout, the page is in docs/
    page = packaged if packaged.is_file() else package.parent / "docs" / "troubleshooting.md"
    parts = re.split(r"^## (.+)\n", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    sections = dict(zip(parts[1::2], map(str.strip, parts[2::2]), strict=True))
    return {title: text for title, text in sections.items() if title.startswith("JL-")}
