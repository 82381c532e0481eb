"""What does a hand-written C++ wrapper cost: its first build, each further one, and a launch through it?

The same C++ goes to jitload and to tvm-ffi: `add`, two integers without CUDA, and the wrapper of the CUBIN launcher
guide. Every sample is a new process with empty caches; the peers take turns, and the clock runs while `load_inline`
does. "At once" is the build right behind the first, while jitload still precompiles the headers; "further" ones come
when that is done. tvm-ffi's C++-only path is given CUDA's headers, as it does not look for them; its cuda path needs
nvcc. With a GPU: both wrappers launch the same cubin in one process, 500 launches a sample, in turn.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
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
from common import machine_line, print_table, set_build_environment, write_json
from nvrtc_floor import compile_bare, nvrtc_path, open_nvrtc
from sources import TVM_WRAPPER, kernel_text

FURTHER = 3
LAUNCHES, ROUNDS = 500, 40
ADD = "int add(int a, int b) { return a + b; }\n"
_ADD, _GUIDE, _LAUNCH = "tvm-ffi, add, first", "tvm-ffi, guide's wrapper, C++ path", "launch, tvm-ffi's header"
ROWS = [
    Row(label=_ADD, peer="tvm-ffi-add", metric="first"),
    Row(label="jitload, add, first on a machine", peer="jitload-add", metric="first", base=_ADD),
    Row(label="jitload, add, at once", peer="jitload-add", metric="at once", base=_ADD),
    Row(label="tvm-ffi, add, further", peer="tvm-ffi-add", metric="further", base=_ADD),
    Row(label="jitload, add, further", peer="jitload-add", metric="further", base=_ADD),
    Row(label=_GUIDE, peer="tvm-ffi-guide", metric="first"),
    Row(label="tvm-ffi, guide's wrapper, nvcc", peer="tvm-ffi-nvcc", metric="first", base=_GUIDE),
    Row(label="jitload, guide's wrapper, first on a machine", peer="jitload-guide", metric="first", base=_GUIDE),
    Row(label="jitload, guide's wrapper, at once", peer="jitload-guide", metric="at once", base=_GUIDE),
    Row(label="tvm-ffi, guide's wrapper, C++ path, further", peer="tvm-ffi-guide", metric="further", base=_GUIDE),
    Row(label="jitload, guide's wrapper, further", peer="jitload-guide", metric="further", base=_GUIDE),
    Row(label=_LAUNCH, peer="launch", metric="upstream"),
    Row(label="launch, jitload's header", peer="launch", metric="ours", base=_LAUNCH),
]


def main() -> None:
    options = read_options()
    set_build_environment(options.arch)
    if options.child:
        answer(lambda: PEERS[options.child](options.arch))
        return
    machine = machine_line()
    print(machine, flush=True)
    results = measure(wanted_peers(ROWS, options, ["tvm-ffi-add", "jitload-add", "jitload-guide"]), options)
    print_table(COLUMNS, table(ROWS, results))
    print(
        f"arch {options.arch}, {options.samples} processes a peer; the p95 of fewer than 20 samples is the largest.\n"
        "Base: the first row of each of the three groups, tvm-ffi's"
    )
    write_json(options.json, raw_numbers("wrapper", machine, ROWS, results))


def read_options() -> argparse.Namespace:
    return child_parser(__doc__, PEERS, quick="only the builds, without CUDA for tvm-ffi", samples=5).parse_args()


def measure(peers: list[str], options: argparse.Namespace) -> Results:
    """Run every peer `samples` times in turn, after one round that only warms the machine up."""
    results = Results()
    with tempfile.TemporaryDirectory(prefix="jitload-wrapper-", ignore_cleanup_errors=True) as folder:
        for sample, peer in results.rounds(peers, options.samples):
            if sample == 1 or peer != "launch":
                cache = Path(folder) / f"{peer}-{sample}"
                results.add(peer, *run_child(__file__, peer, cache, {"arch": options.arch}), is_warm_up=sample == 0)
    return results


# ---- the builds ----------------------------------------------------------------------------------------------------


def build_add(load_inline: Callable[..., Any], number: int) -> object:
    return load_inline("bench_add", cpp_sources=f"{ADD}// {number}\n", functions=["add"])


def jitload_add(arch: str) -> Answer:  # noqa: ARG001  it has no kernel
    import tvm_ffi  # noqa: F401

    import jitload

    return _jitload_builds(lambda number: build_add(jitload.load_inline, number))


def jitload_guide(arch: str) -> Answer:
    import tvm_ffi  # noqa: F401

    import jitload

    cubin = guide_cubin(arch)
    return _jitload_builds(lambda number: build_guide(jitload.load_inline, cubin, number))


def _jitload_builds(build: Callable[[int], object]) -> Answer:
    first, at_once = timed(build, 0), timed(build, 1)
    wait_until_precompiled()
    return {"first": [first], "at once": [at_once], "further": [timed(build, 2 + number) for number in range(FURTHER)]}


def build_guide(load_inline: Callable[..., Any], cubin: bytes, number: int, **options: object) -> Any:
    sources = options.pop("sources", "cuda_sources")
    text = {sources: f"{TVM_WRAPPER}// {number}\n"}
    return load_inline("bench_cubin", **text, embed_cubin={"bench_cubin": cubin}, **options)


def guide_cubin(arch: str) -> bytes:
    return compile_bare(open_nvrtc(nvrtc_path()), kernel_text(1), arch)


def tvm_ffi_add(arch: str) -> Answer:  # noqa: ARG001  it has no kernel
    from tvm_ffi import cpp

    times = [timed(build_add, cpp.load_inline, number) for number in range(1 + FURTHER)]
    return {"first": times[:1], "further": times[1:]}


def tvm_ffi_guide(arch: str) -> Answer:
    from tvm_ffi import cpp

    cubin, given = guide_cubin(arch), cuda_for_tvm_ffi()
    times = [timed(lambda i: build_guide(cpp.load_inline, cubin, i, **given), number) for number in range(1 + FURTHER)]
    return {"first": times[:1], "further": times[1:]}


def cuda_for_tvm_ffi() -> dict[str, object]:
    """Return what upstream's C++-only path must be told of CUDA: the headers and the library that jitload finds."""
    from jitload.settings import read_settings
    from jitload.toolchain.cuda import find_cuda_toolchain, find_cudart

    kit = find_cuda_toolchain(read_settings())
    cudart = find_cudart(kit)
    return {
        "sources": "cpp_sources",
        "extra_include_paths": [str(path) for path in kit.include_dirs],
        "extra_ldflags": [str(cudart), f"-Wl,-rpath,{cudart.parent}"] if cudart else [],
    }


def tvm_ffi_nvcc(arch: str) -> Answer:
    from tvm_ffi import cpp

    cubin = guide_cubin(arch)
    return {"first": [timed(build_guide, cpp.load_inline, cubin, 0)]}


# ---- the launch ----------------------------------------------------------------------------------------------------


def launch_both(arch: str) -> Answer:
    import torch
    from tvm_ffi import cpp

    import jitload

    if not torch.cuda.is_available():
        raise RuntimeError("needs a GPU")
    cubin = guide_cubin(arch)
    functions = {
        "upstream": build_guide(cpp.load_inline, cubin, 0, **cuda_for_tvm_ffi()).add_one,
        "ours": build_guide(jitload.load_inline, cubin, 0).add_one,
    }
    x, y = torch.zeros(256, device="cuda"), torch.empty(256, device="cuda")
    for name, function in functions.items():
        y.zero_()
        function(x, y, 256)
        if not bool((y == 1).all()):
            raise RuntimeError(f"{name}: a wrong result")
    numbers: Answer = {name: [] for name in functions}
    for turn in range(ROUNDS + 2):
        for name in list(functions) if turn % 2 else list(reversed(functions)):
            seconds = _launches(functions[name], x, y)
            if turn >= 2:
                numbers[name].append(seconds)
    return numbers


def _launches(function: Any, x: Any, y: Any) -> float:
    """Return the seconds that the host takes for a launch: fewer than the driver queues, so that it never waits."""
    import torch

    torch.cuda.synchronize()
    start = perf_counter()
    for _ in range(LAUNCHES):
        function(x, y, 256)
    seconds = (perf_counter() - start) / LAUNCHES
    torch.cuda.synchronize()
    return seconds


PEERS: dict[str, Callable[[str], Answer]] = {
    "jitload-add": jitload_add,
    "jitload-guide": jitload_guide,
    "tvm-ffi-add": tvm_ffi_add,
    "tvm-ffi-guide": tvm_ffi_guide,
    "tvm-ffi-nvcc": tvm_ffi_nvcc,
    "launch": launch_both,
}


if __name__ == "__main__":
    main()
