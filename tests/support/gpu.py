"""What the GPU tests share: streams, variables, and programs that run in a process of their own."""

import subprocess
import sys
from collections.abc import Mapping

import torch
from builds import python_env

from jitload import Module, global_tensor


def values(tensor: torch.Tensor) -> list[float]:
    """Return the different values that a tensor has, the smallest first."""
    return sorted(set(tensor.flatten().tolist()))


def new_stream() -> torch.cuda.Stream:
    """Return a stream that does not wait for the default one."""
    return torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch's own


def keep_busy(cycles: int = 100_000_000) -> None:
    """Occupy torch's current stream, for about 50 ms: work that went elsewhere is long done by then."""
    torch.cuda._sleep(cycles)  # type: ignore[no-untyped-call]  # torch's own


def variable(module: Module, name: str, dtype: object, shape: int | tuple[int, ...]) -> torch.Tensor:
    """Return a module's variable as torch's tensor."""
    return torch.utils.dlpack.from_dlpack(global_tensor(module, name, dtype, shape))


def run_program(text: str, *arguments: str, environment: Mapping[str, str] | None = None) -> str:
    """Run a Python program in a process of its own and return what it prints; it must exit with 0."""
    done = subprocess.run(
        [sys.executable, "-c", text, *arguments],
        env=python_env(environment),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout
