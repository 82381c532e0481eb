"""C++ and the user's include directories in, whether a header among them has what takes nvcc out.

Libraries of kernels are often two lines of source: `#include "norm.cuh"`, and an export of what the header launches.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from jitload.device.conditions import live_tokens, names_of_options
from jitload.device.lexer import tokenize

_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*(?:"([^"\n]+)"|<([^>\n]+)>)', re.MULTILINE)
_MARK = re.compile(
    r"^(?![ \t]*(?:#|//|/?\*)).*?(?:<<<|\b__global__\b)", re.MULTILINE
)  # CUDA's own headers speak of them
_MOST = 64  # headers that are looked at, those next to the source first: this is asked at each call


def launches_in_headers(texts: Sequence[str], include_dirs: Sequence[Path], options: Sequence[str]) -> bool:
    """Tell whether the user's headers have kernels, or `<<<…>>>`, for the C++ that includes them.

    A directory with CUDA's own headers is passed over, and so is what stands under `#ifdef __CUDACC__` or in a macro.

    Example:
        >>> launches_in_headers(['#include "norm.cuh"', "TVM_FFI_DLL_EXPORT_TYPED_FUNC(f, F);"], [Path("include")], ())
        True
    """
    include_dirs = [path for path in include_dirs if not (path / "cuda_runtime.h").is_file()]
    waiting: deque[tuple[tuple[str, str], Path | None]] = deque()
    waiting.extend((name, None) for text in texts for name in _INCLUDE.findall(text))
    seen: set[Path] = set()
    while waiting and len(seen) < _MOST:
        (quoted, angled), home = waiting.popleft()
        places = (*((home,) if home and quoted else ()), *include_dirs)
        path = next(_files(quoted or angled, places), None)
        if path is None or path in seen:
            continue
        seen.add(path)
        text = path.read_text(encoding="utf-8", errors="replace")
        if _MARK.search(text) and _has_kernels(text, options):
            return True
        waiting.extend((name, path.parent) for name in _INCLUDE.findall(text))
    return False


def _has_kernels(text: str, options: Sequence[str]) -> bool:
    """Tell whether a text has kernels or launches that the host's compiler would meet."""
    code = [token for token in tokenize(text) if token.kind != "comment"]
    live = live_tokens(code, {**names_of_options(options), "__CUDACC__": None, "__NVCC__": None})
    tokens = [token for token in live if token.kind in ("word", "mark") and not token.in_directive]
    return any(
        after.text == "__global__" or (after.text == "<<<" and before.text != "operator")
        for before, after in pairwise([*tokens[:1], *tokens])
    )


def _files(name: str, places: Sequence[Path]) -> Iterator[Path]:
    """Yield the files that an include may mean."""
    paths = (Path(name),) if name.startswith("/") else (place / name for place in places)
    yield from (path for path in paths if path.is_file())
