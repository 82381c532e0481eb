"""One run of NVRTC, without what jitload reads from a source first and from a cubin afterwards."""

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from jitload.cuda.job import NvrtcJob
from jitload.cuda.nvrtc import run_nvrtc
from jitload.errors import CompileError
from jitload.settings import read_settings
from jitload.toolchain.cuda import find_cuda_toolchain


class Answer(NamedTuple):
    """What NVRTC gave; `cubin` is empty when it failed."""

    log: str
    cubin: bytes


@cache
def nvrtc_path() -> Path:
    return find_cuda_toolchain(read_settings()).nvrtc_path


def ask_nvrtc(
    source: str, options: Sequence[str], names: Sequence[str] = (), headers: Mapping[str, str] | None = None
) -> Answer:
    """Compile a source with name expressions and headers in memory."""
    flags = ("--modify-stack-limit=false", *options)
    job = NvrtcJob("k.cu", source, flags, headers=tuple((headers or {}).items()), expressions=tuple(names))
    try:
        result = run_nvrtc(nvrtc_path(), job)
    except CompileError as error:
        return Answer(error.log, b"")
    return Answer(result.log, result.cubin)
