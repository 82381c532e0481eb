"""Finds the installed Triton, and describes how its releases differ. Releases after 3.9 are treated like 3.9."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from jitload.errors import JitLoadError, ToolchainError

_OLDEST = (3, 6)  # the release of torch 2.10
KNOWN_RELEASES = "Use a release of Triton from 3.6 to 3.9, or a newer jitload."


def find_triton() -> str:
    """Return the version of the installed Triton. Raise ToolchainError if there is none that jitload supports."""
    try:
        import triton
    except ImportError as error:
        raise ToolchainError(
            f"Triton kernels need Triton, and it cannot be imported: {error}. Install it with: pip install triton"
        ) from error
    version = str(getattr(triton, "__version__", ""))
    read_version(version)
    return version


def read_version(version: str) -> tuple[int, int]:
    """Return the major and minor number of a version. Raise ToolchainError if it is older than 3.6."""
    try:
        major, minor, *_ = version.split(".")
        number = int(major), int(minor)
    except ValueError:
        raise ToolchainError(f"Triton reports the version {version!r}, which is not a version number") from None
    if number < _OLDEST:
        raise ToolchainError(f"Triton {version} is too old: jitload needs 3.6 or newer. pip install -U triton")
    return number


def descriptor_flags(version: str) -> int:
    """Return how many flags (padding, rounding to tf32) a descriptor has if it is passed as plain parameters."""
    return 1 + (read_version(version) >= (3, 7))


@contextmanager
def stable_interface(name: str) -> Iterator[None]:
    """Raise JitLoadError if the block fails because `name`, a part of Triton's interface, has changed."""
    try:
        yield
    except (ImportError, TypeError, AttributeError) as error:
        raise JitLoadError(
            f"Triton {find_triton()} has changed its interface: {name} has changed ({type(error).__name__}: {error}). "
            f"{KNOWN_RELEASES}"
        ) from error


def cuda_target(capability: int) -> Any:
    """Return Triton's `GPUTarget` for an architecture, which lets Triton compile without a GPU."""
    with stable_interface("GPUTarget(backend, arch, warp_size)"):
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", capability, 32)


def cuda_backend(capability: int) -> Any:
    """Return Triton's compiler for a GPU architecture."""
    target = cuda_target(capability)
    with stable_interface("make_backend()"):
        from triton.compiler.compiler import make_backend
    try:
        return make_backend(target)
    except RuntimeError as error:
        raise ToolchainError(f"Triton {find_triton()} cannot compile for NVIDIA GPUs: {error}") from error
