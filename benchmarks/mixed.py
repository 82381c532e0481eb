"""What does a text with kernels and `<<<…>>>` cost: through jitload, plain nvcc, and tvm-ffi's load_inline?

All use the nvcc that jitload finds. Every sample is a new process with empty caches that builds a first text, which
does not count, and then further ones. The peers take turns. "At once" is the build directly after the first, while
jitload precompiles a header in the background. The other builds of jitload come when that is done. Plain nvcc goes from
a text to a library with one image for each architecture. The clock of the loaders stops when the function can be
called. Every text is new.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from children import (
    COLUMNS,
    Answer,
    Results,
    Row,
    answer,
    child_parser,
    raw_numbers,
    run_child,
    table,
    timed,
    wait_until_precompiled,
    wanted_peers,
)
from common import dotted, machine_line, print_table, write_json

FURTHER = 3
PLAIN = r"""
struct Any { int type; unsigned zero; long value; };
__global__ void add(float* x) { x[threadIdx.x] += 1; }
extern "C" __attribute__((visibility("default"))) int __tvm_ffi_run(void*, const Any* arguments, int, Any* result) {
  add<<<1, 32>>>(reinterpret_cast<float*>(arguments->value));
  *result = {1, 0, cudaGetLastError()};
  return 0;
}
"""
TVM_FFI = r"""
__global__ void add(float* x) { x[threadIdx.x] += 1; }
void run(tvm::ffi::TensorView x) { add<<<1, 32>>>(static_cast<float*>(x.data_ptr())); }
"""
# What both loaders add to an inline text.
_NAMES = ("container/tensor", "dtype", "error", "extra/c_env_api", "function")
HEADERS = "".join(f"#include <tvm/ffi/{name}.h>\n" for name in _NAMES)
EXPORT = "\nTVM_FFI_DLL_EXPORT_TYPED_FUNC(run, run);\n"
_ROWS = {
    "no #include": ("nvcc-plain", "jitload-plain"),
    "no #include, two architectures": ("nvcc-two", "jitload-two"),
    "tvm-ffi's headers": ("nvcc-tvm", "jitload-tvm", "tvm-ffi"),
}
ROWS = [
    Row(label=f"{peer}: {text}", peer=peer, metric="further", base="" if peer == peers[0] else f"{peers[0]}: {text}")
    for text, peers in _ROWS.items()
    for peer in peers
] + [
    Row(label=f"{peer}: {text}, at once", peer=peer, metric="at once", base=f"{peers[0]}: {text}")
    for text, peers in _ROWS.items()
    for peer in peers
    if peer.startswith("jitload")
]


def main() -> None:
    options = child_parser(__doc__, PEERS, quick="without tvm-ffi's headers", samples=5).parse_args()
    if options.child:
        answer(lambda: PEERS[options.child](options.arch))
        return
    machine = f"{machine_line()} | nvcc {'.'.join(map(str, find_nvcc().version))}"
    print(machine, flush=True)
    results = measure(wanted_peers(ROWS, options, ["nvcc-plain", "jitload-plain", "nvcc-two", "jitload-two"]), options)
    print_table(COLUMNS, table(ROWS, results))
    print(f"arch {options.arch} (and sm_80), {options.samples} processes a peer, {FURTHER} builds each")
    write_json(options.json, raw_numbers("mixed", machine, ROWS, results))


def measure(peers: list[str], options: argparse.Namespace) -> Results:
    """Run every peer `samples` times in turn, after one round that only warms the machine up."""
    results = Results()
    with tempfile.TemporaryDirectory(prefix="jitload-mixed-", ignore_cleanup_errors=True) as folder:
        for sample, peer in results.rounds(peers, options.samples):
            cache = Path(folder) / f"{peer}-{sample}"
            cache.mkdir()
            results.add(peer, *run_child(__file__, peer, cache, {"arch": options.arch}), is_warm_up=sample == 0)
    return results


def find_nvcc() -> Any:
    """Return the nvcc that jitload takes."""
    from jitload.settings import read_settings
    from jitload.toolchain.nvcc import find_nvcc

    with tempfile.TemporaryDirectory() as cache:
        return find_nvcc(read_settings(), Path(cache), name="benchmark")


def _further(build: Callable[[int], object]) -> Answer:
    build(0)
    return {"further": [timed(build, number) for number in range(1, FURTHER + 1)]}


def _jitload_builds(build: Callable[[int], object]) -> Answer:
    build(0)
    at_once = timed(build, 1)
    wait_until_precompiled()
    return {"at once": [at_once], "further": [timed(build, number) for number in range(2, FURTHER + 2)]}


# ---- plain nvcc ----------------------------------------------------------------------------------------------------


def nvcc_builds(text: str, archs: tuple[str, ...]) -> Answer:
    from jitload.toolchain.host import tvm_ffi_include_dirs

    numbers = [arch.removeprefix("sm_") for arch in archs]
    command = [
        *(str(find_nvcc().path), "-shared", "-std=c++17", "-O2", "-Xcompiler=-fPIC,-fvisibility=hidden"),
        *(f"-gencode=arch=compute_{number},code=sm_{number}" for number in numbers),
        *(f"-I{path}" for path in tvm_ffi_include_dirs()),
    ]
    directory = Path(os.environ["JITLOAD_CACHE_DIR"])
    directory.mkdir()

    def build(number: int) -> None:
        source = directory / f"m{number}.cu"
        source.write_text(f"{text}// {number}\n")
        subprocess.run([*command, str(source), "-o", str(source.with_suffix(".so"))], check=True)

    return _further(build)


# ---- the loaders ---------------------------------------------------------------------------------------------------


def jitload_file_builds(archs: tuple[str, ...]) -> Answer:
    import tvm_ffi  # noqa: F401

    import jitload

    directory = Path(os.environ["JITLOAD_CACHE_DIR"]).parent

    def build(number: int) -> object:
        source = directory / f"m{number}.cu"
        source.write_text(f"{PLAIN}// {number}\n")
        return jitload.load("bench_mixed", sources=source, arch=archs).run

    return _jitload_builds(build)


def jitload_inline_builds(arch: str) -> Answer:
    import tvm_ffi  # noqa: F401

    import jitload

    return _jitload_builds(
        lambda number: (
            jitload.load_inline("bench_mixed", cuda_sources=f"{TVM_FFI}// {number}\n", functions="run", arch=arch).run
        )
    )


def tvm_ffi_builds(arch: str) -> Answer:
    os.environ["CUDA_HOME"] = str(_toolkit_of_nvcc())
    os.environ["TVM_FFI_CUDA_ARCH_LIST"] = dotted(arch)
    from tvm_ffi import cpp

    return _further(
        lambda number: cpp.load_inline("bench_mixed", cuda_sources=f"{TVM_FFI}// {number}\n", functions="run").run
    )


def _toolkit_of_nvcc() -> Path:
    """Return the toolkit of nvcc, which may itself be a script elsewhere.

    Wheels get a `lib64` with the name of the library that upstream links.
    """
    nvcc = find_nvcc()
    home = nvcc.include_dirs[0].parent
    if (home / "lib64" / "libcudart.so").exists():
        return home
    toolkit = Path(os.environ["JITLOAD_CACHE_DIR"]).parent / "toolkit"
    (toolkit / "lib64").mkdir(parents=True)
    (toolkit / "lib64" / "libcudart.so").symlink_to(home / "lib" / f"libcudart.so.{nvcc.major}")
    for name in ("bin", "include", "nvvm"):
        (toolkit / name).symlink_to(home / name)
    return toolkit


PEERS: dict[str, Callable[[str], Answer]] = {
    "nvcc-plain": lambda arch: nvcc_builds(PLAIN, (arch,)),
    "jitload-plain": lambda arch: jitload_file_builds((arch,)),
    "nvcc-two": lambda arch: nvcc_builds(PLAIN, ("sm_80", arch)),
    "jitload-two": lambda arch: jitload_file_builds(("sm_80", arch)),
    "nvcc-tvm": lambda arch: nvcc_builds(HEADERS + TVM_FFI + EXPORT, (arch,)),
    "jitload-tvm": jitload_inline_builds,
    "tvm-ffi": tvm_ffi_builds,
}


if __name__ == "__main__":
    main()
