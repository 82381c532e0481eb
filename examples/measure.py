"""Compare two ways to add one, on the GPU or on the CPU: first their results, then their times."""

from __future__ import annotations

import torch

import jitload

SOURCE = r"""
extern "C" __global__ void add_one(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[i] + 1.0f;
}
extern "C" __global__ void add_one_by_four(const float4* x, float4* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = make_float4(x[i].x + 1, x[i].y + 1, x[i].z + 1, x[i].w + 1);
}
extern "C" __global__ void add_two(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[i] + 2.0f;
}
"""
COUNTS = {"add_one": "x.numel()", "add_one_by_four": "x.numel() // 4", "add_two": "x.numel()"}


def main() -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    mod = jitload.load_inline(
        "measure",
        cuda_sources=SOURCE,
        functions={
            name: jitload.Launch(grid="ceil_div(n, 256)", block=256, args={"n": count})
            for name, count in COUNTS.items()
        },
        arch="native" if device == "cuda" else "cpu",
    )
    for name in mod:
        print(f"{name}: {mod[name].kernel}, {mod[name].kernel.registers or 'no'} registers")
    x = torch.rand(1 << 20, device=device)
    y = torch.zeros_like(x)

    functions = {"one": mod.add_one, "four": mod.add_one_by_four}
    table = jitload.compare(functions, x, y, reference=lambda x, _y: x + 1, flop=x.numel())
    print(table)
    assert table["one"].bytes == 2 * 4 * x.numel()
    assert not y.any()  # the arguments are as they were

    message = ""
    try:
        jitload.compare({"two": mod.add_two}, x, y, reference=lambda x, _y: x + 1)
    except jitload.errors.MismatchError as error:  # a function with other results is not measured
        message = str(error)
    print(message)
    assert message.startswith("'two' is wrong: its 'y' differs from that of the reference")
    print("add_one: equal to torch's result on 1048576 elements, and measured; add_two: refused")


if __name__ == "__main__":
    main()
