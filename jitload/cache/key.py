"""The key of a cache entry: a digest of everything known before a build that decides what the build makes."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from jitload.request.request import Request
from jitload.toolchain.arch import CPU
from jitload.toolchain.cuda import CudaToolchain, Nvcc
from jitload.toolchain.host import cpu_identity, tvm_ffi_version

SCHEMA = 4
Part = str | bytes | tuple[str, ...]
_LONGEST_SHOWN = 256
_DEBUG_OPTIONS = ("-g", "-G", "-lineinfo", "--generate-line-info", "--device-debug", "--dopt")
# Names that put the path of a source file into the code that is made from it. `static_assert` does not.
_EMBEDS_PATH = re.compile(rb"(?<!static_)assert|ASSERT|CHECK|THROW|__FILE__|__builtin_FILE|source_location")


class CacheKey(NamedTuple):
    """The key of an entry, with the parts that it was computed from.

    Attributes:
        name: The module's name, which begins the name of the entry's directory.
        digest: SHA-256 over the parts, each prefixed with its length, as 64 hexadecimal digits.
        parts: The label and value of each part.
        anchors: The user's directories and files, which may be elsewhere for another user. Their paths are not in the
            key, and what is read below them is recorded relative to them.
        embeds_paths: Whether the code contains paths of the anchors, as debug information does.
        unknown_parts: Labels of parts that this machine cannot tell because it lacks a tool. Nothing can be built for
            such a key, but an entry that agrees in all other parts may be used.
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
        """Return the key for these parts; a part that is a tuple keeps the boundaries between its items."""
        all_parts = (("schema", str(SCHEMA)), ("name", name), *parts)
        digest = hashlib.sha256(b"".join(_bytes_of_parts(all_parts))).hexdigest()
        return cls(name=name, digest=digest, parts=parts, anchors=anchors, embeds_paths=embeds_paths)


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
    """Return whether code made from a source may contain the path of its file, as with `assert` and `__FILE__`."""
    return _EMBEDS_PATH.search(source) is not None


def describe_parts(key: CacheKey) -> dict[str, str | list[str]]:
    """Return the parts for a person to compare: short texts as they are, long ones and bytes by their digests."""
    return dict(_described_parts(key))


def _described_parts(key: CacheKey) -> Iterator[tuple[str, str | list[str]]]:
    labels = [label for label, _ in key.parts]
    for index, (label, value) in enumerate(key.parts):
        repeats = labels[:index].count(label)
        shown = [_describe(item) for item in value] if isinstance(value, tuple) else _describe(value)
        yield f"{label}.{repeats}" if repeats else label, shown


def _describe(value: str | bytes) -> str:
    data = value.encode("utf-8", "surrogateescape") if isinstance(value, str) else value
    if isinstance(value, str) and len(data) <= _LONGEST_SHOWN:
        return value
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


# ---- the parts for a request -----------------------------------------------------------------------------------


def library_key(request: Request, toolchain: CudaToolchain | Nvcc | None, compiler: str, own: str) -> CacheKey:
    """Return the key of the library for a request, with all parts that decide its contents.

    The paths of the user's directories are not part of it: the headers that were read in them are verified on a hit,
    and the same headers in another directory make the same library, unless the library contains their paths.
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
        ),
    )


def _cpu_parts(request: Request) -> tuple[tuple[str, str | tuple[str, ...]], ...]:
    """Return the parts for kernels on the CPU: options of the host's compiler, and the version of the C library.

    A library that NVRTC has checked and one that it has not are two entries: the part `nvrtc` says which NVRTC it was,
    or that there was none.
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
    return os.confstr("CS_GNU_LIBC_VERSION") or "" if hasattr(os, "confstr") else ""


def _cubin_parts(request: Request) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Return the parts for functions that are made from cubins."""
    return tuple(
        ("image", (os.path.basename(cubin.label), hashlib.sha256(cubin.data).hexdigest(), repr(cubin.kernels)))
        for cubin in request.cubins
    )


def _label(label: str, text: str, *, embeds_paths: bool) -> str:
    """Return the part of a source's path that may reach the library: often only the file's name."""
    if not os.path.isabs(label) or embeds_paths or may_embed_path(text.encode()):
        return label
    return os.path.basename(label)


def _host_parts(request: Request, *, embeds_paths: bool) -> tuple[tuple[str, str | tuple[str, ...]], ...]:
    """Return the parts for C++ written by hand; tvm-ffi's version is one, because its C++ headers change."""
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
