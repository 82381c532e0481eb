"""What programs that fork a child for each of their cases do once for all."""

import gc
from contextlib import suppress


def raise_first_error() -> None:
    """Raise an error in tvm-ffi. The first one of a process takes a second, to read the symbols of all libraries."""
    import tvm_ffi

    with suppress(RuntimeError):
        tvm_ffi.get_global_func("ffi.GetGlobalFuncMetadata")("none")


def import_slow_modules() -> None:
    """Import what takes seconds, and have Triton compute the hash of itself, for 0.4 s, if it is installed."""
    gc.disable()
    import jinja2  # noqa: F401

    with suppress(ImportError):
        import torch

        torch.testing.assert_close(torch.ones(1), torch.ones(1))  # this imports more
    import tvm_ffi  # noqa: F401

    with suppress(ImportError):
        import triton.compiler.code_generator  # noqa: F401
        from triton.runtime.cache import triton_key

        triton_key()
    gc.freeze()  # or each child would look through all that was imported
    gc.enable()
