"""`embed_cubin=` in, names and bytes of cubins out, whatever holds them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jitload.errors import JitLoadError
from jitload.model import Cubin, Kernel

Image = bytes | bytearray | memoryview | str | os.PathLike[str] | Cubin


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenImage:
    """A cubin to make functions of: what messages call it, its bytes, and its kernels where they are typed already."""

    label: str
    data: bytes
    kernels: tuple[Kernel, ...] = ()


def read_cubins(value: Mapping[str, Image] | None, device_name: str = "") -> tuple[tuple[str, bytes], ...]:
    """Return `embed_cubin=` as names and bytes, sorted; what the bytes are is looked at before they are embedded.

    Args:
        value: What was given.
        device_name: The name under which compiled device code is embedded besides, or "".
    """
    if value is None:
        return ()
    if not isinstance(value, Mapping):
        raise JitLoadError(f"embed_cubin must map names to cubins, got {type(value).__name__}")
    for name, image in value.items():
        is_source = isinstance(image, Path) and image.name == f"{name}.cubin"  # a file among sources=
        check_cubin_name(name, f"{image!s} is embedded by its name: it" if is_source else "embed_cubin")
        if f"{name}_end" in value:
            raise JitLoadError(f"embed_cubin has {name!r} and '{name}_end', which is the symbol of the former's end")
    if device_name in value:
        raise JitLoadError(f"embed_cubin has {device_name!r}, the name under which cuda_sources is embedded")
    return tuple((name, read_cubin(value[name], f"embed_cubin[{name!r}]")) for name in sorted(value))


def read_images(value: Mapping[str, Image] | None) -> tuple[GivenImage, ...]:
    """Return `embed_cubin=` where functions are to be made of it, without any C++; names are for messages alone."""
    if not isinstance(value, Mapping):
        raise JitLoadError(f"embed_cubin must map names to cubins, got {type(value).__name__}")
    return tuple(
        GivenImage(
            label=f"embed_cubin[{name!r}]",
            data=read_cubin(image, f"embed_cubin[{name!r}]"),
            kernels=image.kernels if isinstance(image, Cubin) else (),
        )
        for name, image in value.items()
    )


def check_cubin_name(name: str, what: str) -> None:
    """Refuse a name that `TVM_FFI_EMBED_CUBIN(name)` cannot have."""
    if not isinstance(name, str) or not (name.isascii() and name.isidentifier()):
        raise JitLoadError(
            f"{what} has {name!r}, which is no C++ name; TVM_FFI_EMBED_CUBIN takes letters, digits and underscores"
        )


def read_cubin(value: Image, what: str) -> bytes:
    """Return the bytes of one cubin, whatever holds them."""
    value = _compiled_image(value, what)
    if isinstance(value, Cubin):
        return value.data
    if isinstance(value, str) and "\n" in value:
        return value.encode(errors="replace")  # PTX or source text, as whoever looks at the bytes will say
    if isinstance(value, str | os.PathLike):
        return _read_cubin_file(value, what)
    try:
        return bytes(memoryview(value))
    except TypeError:
        raise JitLoadError(f"{what} must be bytes, a path or a Cubin, got {type(value).__name__}") from None


def _read_cubin_file(path: str | os.PathLike[str], what: str) -> bytes:
    shown = os.fsdecode(path)[:200]
    try:
        return Path(os.fsdecode(path)).read_bytes()
    except ValueError as error:  # a NUL in it: bytes of a cubin, decoded
        raise JitLoadError(f"{what} is a str that is no path ({error}); give a cubin's own bytes") from error
    except OSError as error:
        raise JitLoadError(f"{what}: {shown!r} cannot be read: {error.strerror}") from error


def _compiled_image(value: Any, what: str) -> Any:
    """Return the cubin of an object that a compiler hands out, such as Triton's CompiledKernel, or the value itself."""
    images = getattr(value, "asm", None)
    if isinstance(images, Mapping):
        if "cubin" not in images:
            raise JitLoadError(f"{what}: this {type(value).__name__} has no cubin, only {', '.join(map(str, images))}")
        return images["cubin"]
    if isinstance(value, Cubin | bytes | bytearray | memoryview | str | os.PathLike):
        return value
    held = next((found for name in ("cubin", "kernel") if (found := getattr(value, name, None)) is not None), value)
    if held is value and callable(getattr(value, "warmup", None)):
        raise JitLoadError(
            f"{what}: this Triton kernel is not compiled yet; give what extract_triton() or kernel.warmup(…) returns"
        )
    return held
