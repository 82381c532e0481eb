"""How fast is the matrix product of `examples/hopper`, compared with cuBLAS, Triton and the same text through nvcc?

`c = a @ b.T` for bfloat16 matrices of `--size` rows and columns. The variants of the example and the configurations of
the Triton kernel are tuned first. Then all of them are checked against cuBLAS and measured in turns. "Compile" is the
time to compile the one variant, by each compiler, without a cache. The table is Markdown.
"""

from __future__ import annotations

import dataclasses
import runpy
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from common import attempt, machine_line, make_parser, native_arch, write_json

import jitload
from jitload import Launch, Tune
from jitload.settings import read_settings
from jitload.toolchain.nvcc import find_nvcc

EXAMPLE = runpy.run_path(str(Path(__file__).parent.parent / "examples" / "hopper" / "gemm.py"))
SOURCE: str = EXAMPLE["SOURCE"]
LAUNCH: Launch = EXAMPLE["LAUNCH"]
SIGNATURE = "(const CUtensorMap a_map, const CUtensorMap b_map, __nv_bfloat162* c, int m, int n, int k, int band)"
CUBLAS = "cuBLAS (`torch.matmul`)"
Product = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], Any]


def main() -> None:
    parser = make_parser(__doc__, peers=False)
    parser.add_argument("--size", type=int, default=4096, help="rows and columns of the matrices")
    parser.add_argument("--seconds", type=float, default=5.0, help="how long to tune the example")
    options = parser.parse_args()
    if native_arch() != "sm_90a":
        sys.exit("hopper_gemm.py needs a Hopper GPU")
    machine = machine_line()
    print(machine, flush=True)
    size = options.size
    a, b = torch.randn(2, size, size, device="cuda", dtype=torch.bfloat16)
    c = torch.empty_like(a)
    compare = {"outputs": 2, "rtol": 2e-2, "atol": 2e-2, "flop": 2 * size**3}
    mod = jitload.load_inline("gemm", cuda_sources=SOURCE, functions={"gemm": LAUNCH}, arch="sm_90a")
    found = mod.gemm.tune(a, b, c, seconds=options.seconds, reference=multiply_torch, progress=False, **compare)
    print(found, flush=True)
    launch = only_variant(dict(found.best.values))
    ways: dict[str, Callable[[], tuple[Product, float]]] = {
        CUBLAS: lambda: (multiply_torch, 0.0),
        f"jitload, NVRTC: {found.best.label}": lambda: with_nvrtc(launch),
        "the same text and variant through nvcc": lambda: with_nvcc(launch),
        "Triton, tuned": lambda: with_triton(a, b, c),
    }
    made = {name: attempt(make) for name, make in ways.items()}
    for name, (_, problem) in made.items():
        if problem:
            print(f"{name}: {problem}", flush=True)
    products = {name: way for name, (way, _) in made.items() if way is not None}
    result = jitload.compare({name: product for name, (product, _) in products.items()}, a, b, c, **compare)
    print_markdown(result, {name: seconds for name, (_, seconds) in products.items()})
    microseconds = {name: result[name].median_us for name in result}
    write_json(options.json, {"machine": machine, "size": size, "microseconds": microseconds})


def print_markdown(result: jitload.Comparison, compile_s: dict[str, float]) -> None:
    print("\n| product | µs | TFLOP/s | of cuBLAS | compile |\n|---|---|---|---|---|")
    for name in result:
        row = result[name]
        share = result[CUBLAS].median_us / row.median_us
        compiled = f"{compile_s[name]:.2f} s" if compile_s[name] else ""
        print(f"| {name} | {row.median_us:.1f} | {row.flop_per_s / 1e12:.0f} | {share:.0%} | {compiled} |")


# ---- the products --------------------------------------------------------------------------------------------------


def multiply_torch(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    return torch.matmul(a, b.T, out=c)


def only_variant(values: dict[str, Any]) -> Launch:
    """Return the example's launch with one variant."""
    return dataclasses.replace(LAUNCH, tune=Tune(**{name: (value,) for name, value in values.items()}))


def instance(launch: Launch) -> str:
    """Return the kernel of the launch's first variant, `gemm<4, 1>`."""
    assert launch.kernel is not None
    assert launch.tune is not None
    return launch.kernel.format(**{name: values[0] for name, values in launch.tune.values})


def with_nvrtc(launch: Launch) -> tuple[Product, float]:
    """Return the function that NVRTC compiled, and the seconds that this took."""
    started = time.perf_counter()
    cubin = jitload.compile_cubin(SOURCE, name="gemm", arch="sm_90a", kernels=[instance(launch)])
    took = time.perf_counter() - started
    return from_cubin(cubin.data, launch, "gemm_nvrtc"), took


def with_nvcc(launch: Launch) -> tuple[Product, float]:
    """Return the function that nvcc compiled, and the seconds that this took."""
    settings = read_settings()
    nvcc = find_nvcc(settings, Path(settings.cache_dir), name="gemm")
    with tempfile.TemporaryDirectory() as directory:
        source, cubin = Path(directory, "gemm.cu"), Path(directory, "gemm.cubin")
        source.write_text(f"{SOURCE}\nconst void* instance = (const void*){instance(launch)};\n")
        started = time.perf_counter()
        subprocess.run([nvcc.path, "-cubin", "-arch=sm_90a", "-O3", "-o", cubin, source], check=True)
        took = time.perf_counter() - started
        return from_cubin(cubin.read_bytes(), launch, "gemm_nvcc"), took


def from_cubin(cubin: bytes, launch: Launch, name: str) -> Product:
    """Return the typed function of a cubin's kernel."""
    functions = {"gemm": dataclasses.replace(launch, signature=SIGNATURE)}
    return jitload.load_inline(name, embed_cubin={name: cubin}, functions=functions).gemm


def with_triton(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> tuple[Product, float]:
    """Return the tuned Triton kernel."""
    import triton
    from triton_kernel import product

    def multiply(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> None:
        (m, k), n = a.shape, b.shape[0]
        product[lambda meta: (triton.cdiv(m, meta["BM"]) * triton.cdiv(n, meta["BN"]),)](a, b, c, m, n, k)

    multiply(a, b, c)
    print(f"Triton's autotuner chose {product.best_config}", flush=True)
    return multiply, 0.0


if __name__ == "__main__":
    main()
