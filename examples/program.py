"""Use a .cu file with main() in two ways: its kernel, and a function of its host code."""

from pathlib import Path

import torch

import jitload

SOURCE = Path(__file__).with_name("saxpy.cu")
ARCH = "native" if torch.cuda.is_available() else "sm_90a"

launch = jitload.Launch(grid="ceil_div(n, 256)", block=256, args={"n": "x.numel()"})
kernels = jitload.load("saxpy", sources=[SOURCE], functions={"saxpy": launch}, arch=ARCH)  # NVRTC, without host code
print(f"{kernels.saxpy.kernel}: {kernels.saxpy.kernel.registers or 'no'} registers")

try:
    n = jitload.Launch(args={"n": "x.numel()"})
    host = jitload.load("saxpy", sources=[SOURCE], functions={"run": n}, arch=ARCH)  # nvcc
except jitload.errors.ToolchainError as error:
    print(f"the kernel alone: {error}")
    host = None

if torch.cuda.is_available():
    x, y = torch.randn(2, 100_000, device="cuda")
    expected = y + 2 * x
    kernels.saxpy(2.0, x, y)
    torch.testing.assert_close(y, expected)
    if host:
        host.run(2.0, x, y)
        torch.testing.assert_close(y, expected + 2 * x)
    print("saxpy: equal to torch's result on 100000 elements")
else:
    print("no GPU here: launching needs one")
