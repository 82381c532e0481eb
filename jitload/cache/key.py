"""The key of a cache entry: a digest of everything that is known before a build and determines its result."""

from __future__ import annotations

import hashlib
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from jitload.request.request import Request
from jitload.toolchain.arch import CPU
from jitload.toolchain.cuda import CudaToolchain, Nvcc
from jitload.toolchain.host import cpu_identity, tvm_ffi_version

SCHEMA = 6
# The parts that depend on the machine and its tools. The other parts say what is asked for.
TOOL_PARTS = ("archs", "nvrtc", "compiler", "cpu", "libc", "gpu_check")
_ASKED_DIGITS = 24
Part = str | bytes | tuple[str, ...]
_LONGEST_SHOWN = 256
_DEBUG_OPTIONS = ("-g", "-G", "-lineinfo", "--generate-line-info", "--device-debug", "--dopt")
# Names whose use in a source file may put the path of that file into the compiled code. `static_assert` does not.
_EMBEDS_PATH = re.compile(rb"(?<!static_)assert|ASSERT|CHECK|THROW|__FILE__|__builtin_FILE|source_location")


class CacheKey(NamedTuple):
    """The key of an entry, and the parts (labelled values) from which the key is computed.

    Attributes:
        name: The module's name, made suitable for file names. The key's directory is `<name>-<digest>`.
        digest: 64 hexadecimal digits: 40 of the SHA-256 of all parts, each prefixed with its length, and 24 of the
            SHA-256 of the parts without `TOOL_PARTS`. So keys that ask for the same thing are found by their names.
        parts: The (label, value) pairs from which the digest is computed.
        anchors: The user's include directories and object files. The key does not contain their paths, which may differ
            between users. The path of a file at or below an anchor is recorded relative to the anchor.
        embeds_paths: Whether the compiled code contains the paths of the anchors, for example in debug information.
        unknown_parts: Labels of the parts in which an entry may differ from this key. The key of a request has unknown
            parts if this machine lacks a tool that determines them. Such a machine cannot build the library.
    """

    name: str
    digest: str
    parts: tuple[tuple[str, Part], ...]
    anchors: tuple[str, ...] = ()
    embeds_paths: bool = False
    unknown_parts: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        name: str,
        parts: tuple[tuple[str, Part], ...],
        *,
        anchors: tuple[str, ...] = (),
        embeds_paths: bool = False,
    ) -> CacheKey:
        """Return the key for these parts. The values ("ab", "c") and ("a", "bc") give different digests."""
        all_parts = (("schema", str(SCHEMA)), ("name", name), *parts)
        asked = _digest(part for part in all_parts if part[0] not in TOOL_PARTS)
        digest = _digest(all_parts)[:-_ASKED_DIGITS] + asked[-_ASKED_DIGITS:]
        return cls(name=name, digest=digest, parts=parts, anchors=anchors, embeds_paths=embeds_paths)

    @property
    def asked(self) -> str:
        """The end of the digest, which says what is asked for, whatever tools make it for whatever architectures."""
        return asked_of(self.digest)


def asked_of(digest: str) -> str:
    """Return the digits of a key's digest that do not depend on `TOOL_PARTS`."""
    return digest[-_ASKED_DIGITS:]


def _digest(parts: Iterable[tuple[str, Part]]) -> str:
    return hashlib.sha256(b"".join(_bytes_of_parts(parts))).hexdigest()


def _bytes_of_parts(parts: Iterable[tuple[str, Part]]) -> Iterator[bytes]:
    for label, value in parts:
        items = value if isinstance(value, tuple) else (value,)
        yield _length_prefixed(label.encode())
        yield len(items).to_bytes(8, "little")
        for item in items:
            yield _length_prefixed(item.encode("utf-8", "surrogateescape") if isinstance(item, str) else item)


def _length_prefixed(data: bytes) -> bytes:
    return len(data).to_bytes(8, "little") + data


def may_embed_path(source: bytes) -> bool:
    """Return whether code compiled from `source` may contain the source file's path, for example through `__FILE__`."""
    return _EMBEDS_PATH.search(source) is not None


def describe_parts(key: CacheKey) -> dict[str, str | list[str]]:
    """Return the parts of a key as readable values, by label. Long texts and bytes are replaced by their digests."""
    labels, described = Counter[str](), dict[str, str | list[str]]()
    for label, value in key.parts:
        name = f"{label}.{labels[label]}" if labels[label] else label
        described[name] = [_describe(item) for item in value] if isinstance(value, tuple) else _describe(value)
        labels[label] += 1
    return described


def _describe(value: str | bytes) -> str:
    data = value.encode("utf-8", "surrogateescape") if isinstance(value, str) else value
    if isinstance(value, str) and len(data) <= _LONGEST_SHOWN:
        return value
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


# ---- the parts for a request -----------------------------------------------------------------------------------


def library_key(request: Request, toolchain: CudaToolchain | Nvcc | None, compiler: str, own: str) -> CacheKey:
    """Return the key of the library for a request, with all parts that determine the library's contents.

    `compiler` and `own` identify the host compiler and jitload itself. The key does not contain the paths of the user's
    include directories. The same headers elsewhere make the same library, unless the library contains their paths. An
    entry is used only if the headers that its build read are unchanged.
    """
    functions = ("all",) if request.functions is None else tuple(f"{name}={spec!r}" for name, spec in request.functions)
    host = request.host
    flags = [flag for unit in host.units for flag in (*unit.flags, *host.flags)] if host else [*request.options]
    flags += request.cpu_flags
    embeds_paths = any(flag.startswith(_DEBUG_OPTIONS) for flag in flags) or bool(request.instrumentation)
    return CacheKey.of(
        request.slug,
        anchors=(*request.include_dirs, *(host.objects if host else ())),
        embeds_paths=embeds_paths,
        parts=(
            ("kind", "triton" if request.triton else "device" if host is None else "host"),
            ("module", request.name),
            ("labels", tuple(_label(label, text, embeds_paths=embeds_paths) for label, text in request.pieces)),
            ("sources", tuple(text for _, text in request.pieces)),
            ("functions", functions),
            ("archs", request.archs),
            ("options", request.options),
            ("include_dirs", str(len(request.include_dirs))),
            ("nvrtc", toolchain.identity if toolchain else ""),
            ("compiler", compiler),
            ("jitload", own),
            *_host_parts(request, embeds_paths=embeds_paths),
            *(request.triton.parts if request.triton else ()),
            ("cpu", cpu_identity() if any("native" in flag for flag in (*flags, compiler)) else ""),
            *_cubin_parts(request),
            *_cpu_parts(request),
            *_tune_parts(request),
        ),
    )


def _tune_parts(request: Request) -> tuple[tuple[str, str | tuple[str, ...]], ...]:
    """Return the key's parts for variants: the digest of the measurements, and values that depend on the device."""
    parts: list[tuple[str, str | tuple[str, ...]]] = []
    if request.tuned is not None:
        parts.append(("tuned", request.tuned.digest))
    if any("device." in repr(launch.tune) for _, launch in request.functions or () if launch.tune is not None):
        from jitload.request.variants import spaces

        parts.append(("variants", spaces(request)))
    return tuple(parts)


def _cpu_parts(request: Request) -> tuple[tuple[str, str | tuple[str, ...]], ...]:
    """Return the key's parts for kernels on the CPU, such as the compiler's options and the C library's version.

    Kernels that NVRTC has not checked have a different key from kernels that it has checked. If the check is turned
    off, the part `gpu_check` makes the difference. If there is no NVRTC, the part `nvrtc` of the key is empty.
    """
    if CPU not in request.archs:
        return ()
    is_checked = request.settings.checks_for_gpu or len(request.archs) > 1
    return (
        *(() if is_checked else (("gpu_check", "off"),)),
        ("cpu_flags", request.cpu_flags),
        ("sanitize", request.instrumentation.sanitizers),
        ("debug", str(request.instrumentation.is_debug)),
        ("libc", _libc()),
    )


def _libc() -> str:
    return os.confstr("CS_GNU_LIBC_VERSION") or ""


def _cubin_parts(request: Request) -> tuple[tuple[str, tuple[str, ...]], ...]:
    return tuple(
        ("image", (os.path.basename(cubin.label), hashlib.sha256(cubin.data).hexdigest(), repr(cubin.kernels)))
        for cubin in request.cubins
    )


def _label(label: str, text: str, *, embeds_paths: bool) -> str:
    """Return a source's label for the key.

    Of an absolute path, only the file name is kept, unless the path may end up in the library. Other labels do not
    change.
    """
    if not os.path.isabs(label) or embeds_paths or may_embed_path(text.encode()):
        return label
    return os.path.basename(label)


def _host_parts(request: Request, *, embeds_paths: bool) -> tuple[tuple[str, str | tuple[str, ...]], ...]:
    """Return the key's parts for hand-written C++. One part is the version of tvm-ffi, which stands for its headers."""
    host = request.host
    if host is None:
        return ()
    units = [
        (
            *(unit.file, str(unit.is_file)),
            *(part for label, text in unit.pieces for part in (_label(label, text, embeds_paths=embeds_paths), text)),
        )
        for unit in host.units
    ]
    return (
        *(("unit", unit) for unit in units),
        *(("unit_flags", unit.flags) for unit in host.units),
        ("objects", str(len(host.objects))),
        *((("makes", "object"),) if host.is_object else ()),
        *((("makes", "program"),) if host.is_program else ()),
        ("cubins", tuple(part for name, data in host.cubins for part in (name, hashlib.sha256(data).hexdigest()))),
        ("flags", host.flags),
        ("link_flags", host.link_flags),
        ("tvm_ffi", tvm_ffi_version()),
        ("libc", _libc()),
    )
