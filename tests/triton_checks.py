"""Results of the real Triton kernels against torch's, from a library; nothing here knows Triton."""

import sys
from collections.abc import Callable
from typing import Any

import torch


def vector_add(add: Any) -> None:
    for n in (1, 1023, 1024, 98_432):
        x, y = torch.randn(2, n, device="cuda")
        x, y = x.clone(), y.clone()  # rows of odd length are not aligned
        out = torch.empty_like(x)
        add(x, y, out, n)
        torch.testing.assert_close(out, x + y)


def softmax(function: Any) -> None:
    for rows, columns in ((1, 1), (1823, 781), (64, 1024)):
        x = torch.randn(rows, columns, device="cuda")
        out = torch.empty_like(x)
        function(x, out, x.stride(0), out.stride(0), rows, columns)
        torch.testing.assert_close(out, torch.softmax(x, dim=1))


def histogram(function: Any) -> None:
    values = torch.randint(0, 100, (1_000_003,), dtype=torch.int32, device="cuda")
    counts = torch.zeros(100, dtype=torch.int32, device="cuda")
    function(values, counts, values.numel())
    assert torch.equal(counts.long(), torch.bincount(values, minlength=100))


def persistent_matmul(function: Any) -> None:
    for M, N, K in ((1024, 1024, 512), (4096, 2048, 256), (200, 136, 72)):
        a = torch.randn(M, K, dtype=torch.float16, device="cuda")
        b = torch.randn(N, K, dtype=torch.float16, device="cuda")
        c = torch.empty(M, N, dtype=torch.float16, device="cuda")
        function(a, b, c, M, N, K)
        torch.testing.assert_close(c.float(), a.float() @ b.float().T, atol=5e-2, rtol=1e-2)


def device_descriptor_copy(function: Any) -> None:
    x = torch.randn(300, 640, device="cuda")
    y = torch.zeros_like(x)
    function(x, y, 300, 640)
    assert torch.equal(x, y)


CHECKS: dict[str, Callable[[Any], None]] = {
    function.__name__: function
    for function in (
        vector_add, softmax, histogram, persistent_matmul, device_descriptor_copy,
    )
}  # fmt: skip


def run(name: str, path: str) -> None:
    """Load a library without Triton or jitload, and check its function."""
    sys.modules["triton"] = sys.modules["jitload"] = None  # type: ignore[assignment]  # nobody may import them
    import tvm_ffi

    torch.manual_seed(0)
    CHECKS[name](tvm_ffi.load_module(path)[name])
    torch.cuda.synchronize()
    print("equal to torch's result")  # noqa: T201  what the parent waits for


if __name__ == "__main__":
    run(*sys.argv[1:])
