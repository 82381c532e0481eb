"""Distinguishes device code, host code and texts that need nvcc."""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Literal, NamedTuple

from jitload.cpptext.lexer import read_header, strip_header, tokenize
from jitload.cpptext.preprocessor import (
    HEADER_NAME,
    NVRTC_MACROS,
    Macros,
    Run,
    header_directives,
    included_headers,
    live_tokens,
    macros_with,
    read_directives,
    split_directives,
)

SourceKind = Literal["device", "host", "mixed"]

_LAUNCHES = (
    "<<<", "cudaLaunchKernel", "cudaLaunchKernelEx", "cudaLaunchKernelExC", "cudaLaunchCooperativeKernel",
    "cudaLaunchCooperativeKernelMultiDevice",
)  # fmt: skip
# Matches the headers of algorithms that host code calls. Kernels may use Thrust's other headers, too.
HOST_ALGORITHMS = (
    r"cub/device/|thrust/"
    r"(?!(?:complex|pair|tuple|functional|swap|optional|limits|random|iterator|type_traits|detail)\b)"
)
_DEFINES_DEVICE = r"(?m)^[ \t]*#[ \t]*define[ \t]+__device__"
_HOST_COMPILER_MACROS = {"__CUDACC__": None, "__NVCC__": None}
_INCLUDE_LINE = rf"(?m)^([ \t]*#[ \t]*include[ \t]*)(?:{HEADER_NAME})"
_MAX_HEADERS = 64  # the most headers that a call of load_inline reads; direct includes come first


def classify(
    texts: Sequence[str], *, has_embed_cubin: bool, options: Sequence[str] = (), for_nvrtc: bool = False
) -> SourceKind:
    """Return the kind of a source: `device`, `host`, or `mixed`. Only nvcc can compile a `mixed` source.

    A source is `mixed` in these cases:

    - It launches kernels, with `<<<…>>>` or a function of the CUDA runtime.
    - It includes device-wide algorithms of Thrust or CUB, whose host functions launch kernels.
    - It uses tvm-ffi, embeds no cubin, and contains kernels.
    - It uses tvm-ffi, embeds no cubin, and includes a header of Thrust or CUB.

    Any other source that uses tvm-ffi or embeds cubins is `host`. The remaining sources are `device` if they contain
    `__global__`, `__device__` or `__constant__`, and `host` without these words.

    Args:
        texts: The texts of the source.
        has_embed_cubin: Whether there are cubins to embed.
        options: The compiler's options, which may define macros.
        for_nvrtc: Whether to ignore launches under `#ifndef __CUDACC_RTC__`, which NVRTC does not see.

    Example:
        >>> classify(["__global__ void k() {}"], has_embed_cubin=False)
        'device'
    """
    code = [token for text in texts for token in tokenize(text)]
    tokens = list(live_tokens(code, Macros(options=options)))
    words = {token.text for token in tokens if token.kind == "word"}
    is_host_like = {"tvm", "ffi"} <= words or any(word.startswith("TVM_FFI_") for word in words)
    if for_nvrtc and not is_host_like:
        tokens = list(live_tokens(code, Macros(NVRTC_MACROS, options)))
    runs = list(split_directives(tokens))
    has_kernels = _uses(("__global__",), runs)
    has_cubins = has_embed_cubin or any(word.startswith("TVM_FFI_EMBED_CUBIN") for word in words)
    includes = (directive.text for directive, _ in runs if directive and directive.name == "include")
    headers = [name[1] or name[2] for text in includes if (name := re.match(HEADER_NAME, text))]
    needs_nvcc = has_kernels or any(name.startswith(("thrust/", "cub/")) for name in headers)
    launches = _uses(_LAUNCHES, runs) or any(re.match(HOST_ALGORITHMS, name) for name in headers)
    if launches or (is_host_like and needs_nvcc and not has_cubins):
        return "mixed"
    if has_cubins or is_host_like:
        return "host"
    return "device" if words & {"__global__", "__device__", "__constant__"} else "host"


def _uses(words: Collection[str], runs: Sequence[Run]) -> bool:
    """Return whether code outside directives has one of the words, or a macro that contains one.

    `operator<<<` does not launch a kernel.
    """
    wanted = {*words, *macros_with(words, runs)}
    code = ("", *(token.text for directive, run in runs if not directive for token in run))
    return any(text in wanted and before != "operator" for before, text in pairwise(code))


def headers_need_nvcc(texts: Sequence[str], include_dirs: Sequence[Path], options: Sequence[str]) -> bool:
    """Return whether C++ code includes headers that only nvcc can compile.

    These are the headers of CUB and Thrust, and headers of the user that contain or launch kernels or contain device
    functions. The source of a kernel library is often only two lines: `#include "norm.cuh"`, and an export of a
    function in that header. The bodies of macros and code under `#ifdef __CUDACC__` do not count. Device functions do
    not count, either, if CUDA's headers or the user define `__device__` for the C++ compiler.

    Example:
        >>> headers_need_nvcc(['#include "norm.cuh"', "TVM_FFI_DLL_EXPORT_TYPED_FUNC(f, F);"], [Path("lib")], ())
        True
    """
    headers = list(user_headers(texts, include_dirs))
    codes = [*texts, *headers]
    names = {name for code in codes for name, _ in included_headers(read_directives(code))}
    if any(name.startswith(("cub/", "thrust/")) for name in names):
        return True
    words = ["__global__"]
    has_device = re.search(_DEFINES_DEVICE, "\n".join(codes)) or any("__device__" in option for option in options)
    if not has_device and not any(name.startswith("cuda") for name in names):
        words.append("__device__")
    return any(any(word in code for word in ("<<<", *words)) and _has_kernels(code, options, words) for code in headers)


class UserHeader(NamedTuple):
    """A header of the user: its name in the first `#include`, its path and its text."""

    name: str
    path: Path
    text: str


def user_headers(texts: Sequence[str], include_dirs: Sequence[Path]) -> Iterator[str]:
    """Yield the text of each user header that the texts include, without comments. Direct includes come first."""
    return (strip_header(header.text) for header in read_user_headers(texts, include_dirs))


def read_user_headers(texts: Sequence[str], include_dirs: Sequence[Path]) -> Iterator[UserHeader]:
    """Yield each user header that the texts include, directly or through other headers. Direct includes come first."""
    include_dirs = [path for path in include_dirs if not (path / "cuda_runtime.h").is_file()]
    waiting: deque[tuple[str, tuple[Path, ...]]] = deque()
    waiting.extend((name, ()) for text in texts for name, _ in included_headers(read_directives(text)))
    read: set[str] = set()
    while waiting and len(read) < _MAX_HEADERS:
        name, home = waiting.popleft()
        path = _find_header(name, (*home, *include_dirs))
        if path is None or (real := os.path.realpath(path)) in read:
            continue
        read.add(real)
        text = read_header(path)
        yield UserHeader(name, path, text)
        included = included_headers(header_directives(text))
        waiting.extend((header, (path.parent,) if is_quoted else ()) for header, is_quoted in included)


def _find_header(name: str, directories: Sequence[Path]) -> Path | None:
    parents = (Path("/"),) if name.startswith("/") else directories
    return next((path for path in (parent / name for parent in parents) if path.is_file()), None)


def with_header_names(text: str, home: Path | None, include_dirs: Sequence[Path], names: Mapping[str, str]) -> str:
    """Return a text that includes the headers at the paths `names` only by the names there.

    `home` is the directory of the text's own file. Other headers that are found from there are included by their paths.
    """

    def rename(match: re.Match[str]) -> str:
        directive, quoted, angled = match.groups()
        own = _find_header(quoted, (home,)) if home and quoted else None
        path = own or _find_header(quoted or angled, include_dirs)
        name = names.get(os.path.realpath(path), str(own) if own else None) if path else None
        return match[0] if name in (None, quoted, angled) else f'{directive}"{name}"'

    return re.sub(_INCLUDE_LINE, rename, text)


def _has_kernels(text: str, options: Sequence[str], words: Sequence[str]) -> bool:
    """Return whether a host compiler would read launches, or one of the words, in a text."""
    live = live_tokens(tokenize(text), Macros(_HOST_COMPILER_MACROS, options))
    return _uses((*_LAUNCHES, *words), [*split_directives([*live])])
