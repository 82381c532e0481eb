"""Reads the cubins of `embed_cubin=`: names, and contents as bytes, from files, or from objects of other libraries."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from jitload.errors import JitLoadError

if TYPE_CHECKING:
    from jitload.model import Cubin, Kernel

    CubinLike: TypeAlias = bytes | bytearray | memoryview | str | os.PathLike[str] | Cubin
else:
    CubinLike = Any


class LabelledCubin(NamedTuple):
    """A cubin whose kernels become functions.

    Attributes:
        label: Its name in messages.
        data: Its bytes.
        kernels: Its kernels if the user passed a `Cubin`, otherwise ().
    """

    label: str
    data: bytes
    kernels: tuple[Kernel, ...] = ()


def read_embedded_cubins(
    cubins: Mapping[str, CubinLike] | None, device_name: str = ""
) -> tuple[tuple[str, bytes], ...]:
    """Return `(name, bytes)` pairs of the cubins that hand-written C++ embeds, sorted by name.

    `device_name` is the name of the embedded cubin that is built from `cuda_sources`, or "" if there is none.
    """
    if cubins is None:
        return ()
    labelled = read_labelled_cubins(cubins)
    for name in cubins:
        check_cubin_name(name, "a cubin is embedded as")
    if device_name in cubins:
        raise JitLoadError(f"embed_cubin has {device_name!r}, the name under which cuda_sources is embedded: rename it")
    return tuple(sorted((name, cubin.data) for name, cubin in zip(cubins, labelled, strict=True)))


def read_labelled_cubins(cubins: Mapping[str, CubinLike]) -> tuple[LabelledCubin, ...]:
    """Return cubins with labels for messages. In a call without source, their kernels become functions."""
    from jitload.model import Cubin

    if not isinstance(cubins, Mapping):
        raise JitLoadError(f"embed_cubin must map names to cubins, got {type(cubins).__name__}")
    labels = {f"embed_cubin[{name!r}]": cubin for name, cubin in cubins.items()}
    return tuple(
        LabelledCubin(label, _read_cubin(cubin, label), cubin.kernels if isinstance(cubin, Cubin) else ())
        for label, cubin in labels.items()
    )


def check_cubin_name(name: str, subject: str) -> None:
    """Raise JitLoadError unless `TVM_FFI_EMBED_CUBIN` accepts the name. The message begins with `subject`."""
    if not isinstance(name, str) or not (name.isascii() and name.isidentifier()):
        raise JitLoadError(
            f"{subject} {name!r}, which is not a C++ name; TVM_FFI_EMBED_CUBIN needs ASCII letters, digits (not first) "
            "and underscores"
        )


def _read_cubin(value: CubinLike, label: str) -> bytes:
    """Return the bytes of a cubin. `value` is bytes, a path, a `Cubin`, or an object of another compiler."""
    from jitload.model import Cubin

    stages = getattr(value, "asm", None)  # of Triton's CompiledKernel, for example
    if isinstance(stages, Mapping):
        if "cubin" not in stages:
            raise JitLoadError(f"{label}: this {type(value).__name__} has no cubin, only {', '.join(map(str, stages))}")
        value = stages["cubin"]
    elif not isinstance(value, Cubin | bytes | bytearray | memoryview | str | os.PathLike):
        parts = (getattr(value, attribute, None) for attribute in ("cubin", "kernel"))
        value = next((part for part in parts if part is not None), value)
    if isinstance(value, Cubin):
        return value.data
    if isinstance(value, str) and "\n" in value:
        return value.encode(errors="replace")  # PTX or source: reading it as a cubin raises an error later
    if not isinstance(value, str | os.PathLike):
        try:
            return bytes(memoryview(value))
        except TypeError:
            raise JitLoadError(f"{label} must be bytes, a path or a Cubin, got {type(value).__name__}") from None
    try:
        return Path(os.fsdecode(value)).read_bytes()
    except (OSError, ValueError) as error:  # ValueError: a NUL character, in a cubin's bytes that were decoded
        raise JitLoadError(f"{label}: {os.fsdecode(value)[:200]!r} cannot be read as a file: {error}") from error
