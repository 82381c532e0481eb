"""Finds the installed Triton, and describes how its releases differ."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from jitload.errors import JitLoadError, ToolchainError

_OLDEST = (3, 6)  # the release of torch 2.10
KNOWN_RELEASES = "Use a release of Triton from 3.6 to 3.9, or a newer jitload."


class Triton(str):
    """A release of Triton, such as `"3.6.0"`, and the interface of its cubins.

    Releases after 3.9 are treated like 3.9.
    """

    __slots__ = ()

    @property
    def number(self) -> tuple[int, int]:
        """Major and minor version."""
        major, minor, *_ = self.split(".")
        return int(major), int(minor)

    @property
    def descriptor_flags(self) -> int:
        """How many flags (padding, rounding to tf32) a tensor descriptor has if it is passed as plain parameters."""
        return 1 + (self.number >= (3, 7))


def find_triton() -> Triton:
    """Return the installed release of Triton."""
    try:
        import triton
    except ImportError as error:
        raise ToolchainError(
            f"Triton kernels need Triton, and it cannot be imported: {error}. Install it with: pip install triton"
        ) from error
    return read_version(str(getattr(triton, "__version__", "")))


def read_version(version: str) -> Triton:
    """Return the release of Triton with the given version. Raise ToolchainError if it is older than 3.6."""
    triton = Triton(version)
    try:
        number = triton.number
    except ValueError:
        raise ToolchainError(f"Triton reports the version {version!r}, which is not a version number") from None
    if number < _OLDEST:
        raise ToolchainError(f"Triton {version} is too old: jitload needs 3.6 or newer. pip install -U triton")
    return triton


@contextmanager
def stable_interface(triton: Triton, name: str) -> Iterator[None]:
    """Raise JitLoadError if the block fails because `name`, a part of Triton's interface, has changed."""
    try:
        yield
    except (ImportError, TypeError, AttributeError) as error:
        raise JitLoadError(
            f"Triton {triton} has changed its interface: {name} has changed ({type(error).__name__}: {error}). "
            f"{KNOWN_RELEASES}"
        ) from error


def cuda_target(triton: Triton, capability: int) -> Any:
    """Return Triton's `GPUTarget` for an architecture, which lets Triton compile without a GPU."""
    with stable_interface(triton, "GPUTarget(backend, arch, warp_size)"):
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", capability, 32)


def cuda_backend(triton: Triton, capability: int) -> Any:
    """Return Triton's compiler for a GPU architecture."""
    target = cuda_target(triton, capability)
    with stable_interface(triton, "make_backend()"):
        from triton.compiler.compiler import make_backend
    try:
        return make_backend(target)
    except RuntimeError as error:
        raise ToolchainError(f"Triton {triton} cannot compile for NVIDIA GPUs: {error}") from error
