"""`load_inline` and `load` with the signatures of `torch.utils.cpp_extension`, for texts written for torch.

The texts are built as they are, with light headers in place of torch's: see docs/torch.md.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

from jitload.pipeline import PathLike, load_request
from jitload.request.arguments import (
    Call,
    Functions,
    Paths,
    Sources,
    Texts,
    TorchText,
    file_sources,
    inline_sources,
    read_options,
)
from jitload.request.request import make_request

__all__ = ["load", "load_inline"]

_log = logging.getLogger(__name__)


def load_inline(  # noqa: PLR0913  the signature is torch's
    name: str,
    cpp_sources: Texts | None = None,
    cuda_sources: Texts | None = None,
    sycl_sources: Texts | None = None,
    functions: Functions | None = None,
    extra_cflags: Sequence[str] | None = None,
    extra_cuda_cflags: Sequence[str] | None = None,
    extra_sycl_cflags: Sequence[str] | None = None,
    extra_ldflags: Sequence[str] | None = None,
    extra_include_paths: Paths | None = None,
    build_directory: PathLike | None = None,
    verbose: bool = False,  # noqa: FBT001, FBT002
    with_cuda: bool | None = None,  # noqa: FBT001
    with_sycl: bool | None = None,  # noqa: FBT001
    is_python_module: bool = True,  # noqa: FBT001, FBT002
    with_pytorch_error_handling: bool = True,  # noqa: FBT001, FBT002
    keep_intermediates: bool = True,  # noqa: FBT001, FBT002
    use_pch: bool = False,  # noqa: FBT001, FBT002
    no_implicit_headers: bool = False,  # noqa: FBT001, FBT002
) -> ModuleType:
    """Compile C++ and CUDA texts that use torch's C++ interface, and return a module of their functions.

    The arguments are those of `torch.utils.cpp_extension.load_inline`.
    """
    call = Call(
        name=name,
        sources=inline_sources(name, cuda_sources, cpp_sources=cpp_sources, embed_cubin=None),
        makes="module",
        functions=functions,
        options=read_options(
            cflags=extra_cflags,
            cuda_cflags=extra_cuda_cflags,
            ldflags=extra_ldflags,
            include_paths=extra_include_paths,
        ),
        torch=TorchText(has_implicit_headers=not no_implicit_headers, wraps_errors=with_pytorch_error_handling),
    )
    return _load(call, verbose=verbose)


def load(  # noqa: PLR0913  the signature is torch's
    name: str,
    sources: Paths,
    extra_cflags: Sequence[str] | None = None,
    extra_cuda_cflags: Sequence[str] | None = None,
    extra_sycl_cflags: Sequence[str] | None = None,
    extra_ldflags: Sequence[str] | None = None,
    extra_include_paths: Paths | None = None,
    build_directory: PathLike | None = None,
    verbose: bool = False,  # noqa: FBT001, FBT002
    with_cuda: bool | None = None,  # noqa: FBT001
    with_sycl: bool | None = None,  # noqa: FBT001
    is_python_module: bool = True,  # noqa: FBT001, FBT002
    is_standalone: bool = False,  # noqa: FBT001, FBT002
    keep_intermediates: bool = True,  # noqa: FBT001, FBT002
) -> ModuleType:
    """Compile C++ and CUDA files that use torch's C++ interface, and return a module of their functions.

    The arguments are those of `torch.utils.cpp_extension.load`.
    """
    call = Call(
        name=name,
        sources=file_sources(sources),
        makes="module",
        options=read_options(
            cflags=extra_cflags,
            cuda_cflags=extra_cuda_cflags,
            ldflags=extra_ldflags,
            include_paths=extra_include_paths,
        ),
        torch=TorchText(),
    )
    return _load(call, verbose=verbose)


def _load(call: Call, *, verbose: bool) -> ModuleType:
    from jitload.loader.module import torch_module

    module = load_request(make_request(call), None, keep_module_alive=True, verbose=verbose)
    return torch_module(module)
