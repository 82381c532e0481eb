"""Finds Triton, and knows what its cubins are like, release by release."""

from __future__ import annotations

from typing import Any, Literal

from jitload.errors import JitLoadError, ToolchainError

OLDEST = (3, 2)


class Triton(str):  # a record would cost a hit half a millisecond
    """A release of Triton, `"3.6.0"`, and the interface its cubins have; one unknown to us is like the newest."""

    __slots__ = ()

    @property
    def number(self) -> tuple[int, int]:
        """Major and minor version."""
        major, minor, *_ = self.split(".")
        return int(major), int(minor)

    @property
    def hidden_pointers(self) -> int:
        """Pointers behind a kernel's own parameters: none, global scratch, or that and profile scratch."""
        return (self.number >= (3, 3)) + (self.number >= (3, 5))

    @property
    def scratch_is_per_cta(self) -> bool:
        """Whether scratch memory is for each block, and not for each program."""
        return self.number >= (3, 4)

    @property
    def grid_multiplies(self) -> Literal["x", "per_dim"]:
        """How programs become blocks where a program has several."""
        return "x" if self.number >= (3, 6) else "per_dim"

    @property
    def descriptor_flags(self) -> int:
        """Flags of a tensor descriptor that is passed as plain parameters: padding, round to tf32."""
        return (self.number >= (3, 5)) + (self.number >= (3, 7))

    @property
    def has_paths(self) -> bool:
        """Whether constants and attributes are found by paths, (0,), rather than by names and positions."""
        return self.number >= (3, 3)


def find_triton() -> Triton:
    """Return the Triton that is installed.

    Raises:
        ToolchainError: There is none, it is too old, or it has no compiler for NVIDIA's GPUs.
    """
    try:
        import triton
    except ImportError as error:
        how = "Install it with: pip install triton"
        raise ToolchainError(f"Triton kernels need Triton, and it cannot be imported: {error}. {how}") from error
    return read_version(str(getattr(triton, "__version__", "")))


def read_version(version: str) -> Triton:
    """Return the release with a version, refusing those before 3.2."""
    triton = Triton(version)
    try:
        number = triton.number
    except ValueError:
        raise ToolchainError(f"Triton says that its version is {version!r}, which is none") from None
    if number < OLDEST:
        raise ToolchainError(f"Triton {version} is too old: 3.2 is the first that jitload knows. pip install -U triton")
    return triton


def changed_interface(triton: Triton, what: str, error: Exception) -> JitLoadError:
    """Return the error for a release whose inside is not what we know."""
    return JitLoadError(
        f"Triton {triton} has changed its interface: {what} ({type(error).__name__}: {error}). "
        "Use a release from 3.2 to 3.9, or a newer jitload."
    )


def cuda_target(triton: Triton, capability: int) -> Any:
    """Return Triton's own record of a target, by which it compiles without a GPU."""
    try:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", capability, 32)
    except (ImportError, TypeError) as error:
        raise changed_interface(triton, "there is no GPUTarget(backend, arch, warp_size)", error) from error


def cuda_backend(triton: Triton, capability: int) -> Any:
    """Return Triton's compiler for a target.

    Raises:
        ToolchainError: This Triton was built without NVIDIA's.
    """
    target = cuda_target(triton, capability)
    try:
        from triton.compiler.compiler import make_backend
    except ImportError as error:
        raise changed_interface(triton, "there is no make_backend()", error) from error
    try:
        return make_backend(target)
    except RuntimeError as error:
        raise ToolchainError(f"Triton {triton} cannot compile for NVIDIA's GPUs: {error}") from error
