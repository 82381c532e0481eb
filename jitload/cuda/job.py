"""What one run of NVRTC compiles, and what it returns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

SYNTAX_ONLY = "--fdevice-syntax-only"  # with this option NVRTC ends after its front end and makes no cubin
_CCCL_LIMIT = "--define-macro=_CCCL_META_UNROLL_LIMIT=10"
_DECLARED = "__jitload_declared.h"


class NvrtcJob(NamedTuple):
    """One run of NVRTC.

    Attributes:
        name: The name of the source in messages, such as `vec.cu`.
        source: The text.
        options: Command-line options.
        directory: The directory of the source, which need not exist. With "", NVRTC searches the working directory for
            headers. The cache key does not cover these headers.
        headers: (name, text) pairs of headers that exist in memory only.
        expressions: The name expressions. NVRTC instantiates them and returns their symbols.
        declared: Lines to put before the source. They declare names that nvcc declares by itself.
        is_isolated: Whether NVRTC runs in a child process, so that a crash ends only the child.
        directives: The beginning of the source that may be kept parsed, without the `#line` before it.
        header_state: A text that changes with all headers that `directives` may include.
    """

    name: str
    source: str
    options: tuple[str, ...]
    directory: str = ""
    headers: tuple[tuple[str, str], ...] = ()
    expressions: tuple[str, ...] = ()
    declared: tuple[str, ...] = ()
    is_isolated: bool = False
    directives: str = ""
    header_state: str = ""

    def with_declarations(self) -> NvrtcJob:
        """Return this job with the lines of `declared` moved to a header that NVRTC reads before the source."""
        if not self.declared:
            return self
        header = (_DECLARED, "\n".join((*self.declared, "")))
        options = (*self.options, f"--pre-include={_DECLARED}")
        return self._replace(options=options, headers=(*self.headers, header), declared=())


class NvrtcResult(NamedTuple):
    """What one run of NVRTC returned.

    `lowered` maps name expressions to symbols. `spill_bytes` maps symbols of kernels to the bytes that a thread spills.
    """

    cubin: bytes
    log: str
    lowered: Mapping[str, str]
    ptx: str
    spill_bytes: Mapping[str, int]


def device_options(version: tuple[int, ...], arch: str) -> tuple[str, ...]:
    """Return the options of every compile for an architecture. `version` is NVRTC's version."""
    # By default, NVRTC raises the stack limit of the whole process while it compiles, so this is turned off.
    # nvcc always has __int128, and this limit in CCCL. Under NVRTC, CCCL's limit is 16 by default, and NVRTC then takes
    # half a second longer to read <cuda/std/type_traits>, which most of its headers include.
    options = (f"--gpu-architecture={arch}", "--modify-stack-limit=false", "--device-int128", _CCCL_LIMIT)
    # Without a seed, names in anonymous namespaces contain the process id. NVRTC before 12.9 does not know the option.
    return (*options, "--frandom-seed=jitload") if version >= (12, 9) else options
