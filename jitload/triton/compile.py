"""Compiles a kernel with Triton: without a GPU, and without source lines in the machine code."""

from __future__ import annotations

import hashlib
import operator
import os
import secrets
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from jitload.errors import CompileError, JitLoadError, SignatureError
from jitload.model import Cubin
from jitload.triton.kernel import TritonKernel
from jitload.triton.key import outer_values, plan_parts
from jitload.triton.metadata import read_compiled_kernel
from jitload.triton.plan import Plan, check_no_tuples
from jitload.triton.versions import Triton, changed_interface, cuda_backend, cuda_target

_LINE_INFO = "TRITON_DISABLE_LINE_INFO"
_FIRST_WITH_CLUSTERS = 90
_MAX_WARPS, _MAX_CTAS = 32, 16  # 1024 threads of a block; blocks of a cluster
_lock = threading.Lock()


def compile_cubin(kernel: TritonKernel, plan: Plan, triton: Triton, capability: int) -> Cubin:
    """Return one specialization of a kernel, compiled for an architecture, with what a launch needs.

    Raises:
        CompileError: Triton rejects the kernel.
        SignatureError: Triton cannot read the kernel, an option is wrong, or the machine code has other parameters than
            Triton says.
    """
    return read_compiled_kernel(_compile(kernel, plan, triton, capability), triton, plan.constexprs)


def _compile(kernel: TritonKernel, plan: Plan, triton: Triton, capability: int) -> Any:
    """Return Triton's `CompiledKernel`, from Triton's own cache if it is there."""
    import triton as package

    _check_readable(kernel)
    numbers = _check_options(kernel, plan.options, cuda_backend(triton, capability), capability)
    source = _with_complete_hash(_ast_source(kernel, plan, triton), kernel, plan)
    target = cuda_target(triton, capability)
    options = {"debug": _has_assertions(kernel), **plan.options, **numbers}
    try:
        with _without_line_info():
            return package.compile(source, target=target, options=options)
    except JitLoadError:
        raise
    except Exception as error:
        raise CompileError(stage="triton", name=kernel.name, log="\n".join(_messages(error))) from error


def _check_readable(kernel: TritonKernel) -> None:
    """Let Triton read the source of the kernel and of what it calls, and raise SignatureError if it cannot."""
    try:
        kernel.function.cache_key  # noqa: B018  reads all of it
    except Exception as error:
        raise SignatureError(f"kernel {kernel.name!r}: Triton cannot read what it uses: {error}") from error


def _has_assertions(kernel: TritonKernel) -> bool:
    """Return whether assertions are compiled in, as Triton decides at a launch."""
    return bool(getattr(kernel.function, "debug", None)) or os.environ.get("TRITON_DEBUG", "0") == "1"


def _messages(error: BaseException) -> Iterator[str]:
    """Yield the text of an error and of its causes: in older releases, only a cause says what is wrong."""
    text = f"{type(error).__name__}: {error}"
    yield text
    if error.__cause__ is not None and str(error.__cause__) not in text:
        yield from _messages(error.__cause__)


@contextmanager
def _without_line_info() -> Iterator[None]:
    """Leave source lines out of the machine code, unless the user asked for them.

    They double its size and make it depend on the directory. All releases look for this setting in the environment, and
    Triton's cache takes it into its key from there. The lock makes threads wait for each other, which costs nothing:
    Triton compiles with the GIL held (three kernels with 3.9: 2.1 s in a row, 2.3 s without the lock).
    """
    with _lock:
        if _LINE_INFO in os.environ:
            yield
            return
        os.environ[_LINE_INFO] = "1"
        try:
            yield
        finally:
            os.environ.pop(_LINE_INFO, None)


# ---- options ---------------------------------------------------------------------------------------------------

_NUMBERS = {
    "num_warps": f"a power of 2 from 1 to {_MAX_WARPS}: a block has at most {32 * _MAX_WARPS} threads, 32 a warp",
    "num_ctas": f"a power of 2 from 1 to {_MAX_CTAS}, the most blocks that a cluster has",
    "num_stages": "0 or more",
    "maxnreg": "1 or more",
}


def _check_options(kernel: TritonKernel, options: Mapping[str, Any], backend: Any, capability: int) -> dict[str, int]:
    """Refuse options that Triton ignores or fails on without a message, and return those that are numbers."""
    fields = type(backend.parse_options({})).__dataclass_fields__
    if unknown := [name for name in options if name not in fields]:
        parameters = ", ".join(param.name for param in kernel.params)
        raise SignatureError(
            f"kernel {kernel.name!r}: {unknown[0]!r} is neither a parameter ({parameters}) nor an option of Triton's "
            "compiler, such as num_warps, num_stages, num_ctas, maxnreg"
        )
    return {name: _check_number(kernel, name, value, capability) for name, value in options.items() if name in _NUMBERS}


def _check_number(kernel: TritonKernel, name: str, value: Any, capability: int) -> int:
    """Return an option as a number. Triton accepts some that no GPU supports, and others end the process."""
    try:
        number = operator.index(value)
    except TypeError:
        number = -1
    highest = {"num_warps": _MAX_WARPS, "num_ctas": _MAX_CTAS}.get(name, 2**31 - 1)
    lowest = 0 if name == "num_stages" else 1
    is_power = number & (number - 1) == 0 or name not in ("num_warps", "num_ctas")
    if isinstance(value, bool) or not lowest <= number <= highest or not is_power:
        raise SignatureError(f"kernel {kernel.name!r}: {name}={value!r} must be {_NUMBERS[name]}")
    if name == "num_ctas" and number > 1 and capability < _FIRST_WITH_CLUSTERS:
        raise SignatureError(
            f"kernel {kernel.name!r}: num_ctas={number} makes clusters, which GPUs have from sm_90 on, but this is for "
            f"sm_{capability}: leave it out there"
        )
    return number


# ---- Triton's record of what to compile ------------------------------------------------------------------------


def _ast_source(kernel: TritonKernel, plan: Plan, triton: Triton) -> Any:
    """Return Triton's `ASTSource`, whose form changed with 3.3."""
    try:
        from triton.compiler import ASTSource

        if not triton.has_paths:
            return _ast_source_of_3_2(kernel, plan)
        attributes = {path: [["tt.divisibility", 16]] for path in plan.multiples}
        return ASTSource(
            fn=kernel.function, signature=dict(plan.types), constexprs=dict(plan.constants), attrs=attributes
        )
    except (ImportError, TypeError, AttributeError) as error:
        raise changed_interface(triton, "ASTSource is not as it was", error) from error


def _ast_source_of_3_2(kernel: TritonKernel, plan: Plan) -> Any:
    from triton.backends.compiler import AttrsDescriptor
    from triton.compiler import ASTSource

    check_no_tuples(kernel, dict(plan.types))
    names = [name for name, _ in plan.types]
    fixed = {names[path[0]]: value for path, value in plan.constants.items()}
    # What is assumed to be 1 or None stays in the signature there, with a type that is not used.
    assumed = {name: "*i8" if value is None else "i32" for name, value in fixed.items() if name not in plan.constexprs}
    signature = {name: assumed.get(name, types) for name, types in plan.types if name not in plan.constexprs}
    hints = {path[0]: 16 for path in plan.multiples}
    hints |= {names.index(name): 1 for name, text in assumed.items() if text == "i32"}
    return ASTSource(fn=kernel.function, signature=signature, constants=fixed, attrs=AttrsDescriptor.from_hints(hints))


def _with_complete_hash(source: Any, kernel: TritonKernel, plan: Plan) -> Any:
    """Add what Triton's hash leaves out: otherwise Triton's own cache returns the code for other values."""
    if extra := _missing_in_hash(kernel, plan):
        own = source.hash()
        source.hash = lambda: hashlib.sha256(f"{own} {extra}".encode()).hexdigest()
    return source


def _missing_in_hash(kernel: TritonKernel, plan: Plan) -> str:
    """Return what affects the machine code but is not in Triton's hash; a random text if that is not known."""
    values = outer_values(kernel.function)
    if values is None:
        return secrets.token_hex(16)
    constants = (getattr(value, "value", value) for value in plan.constants.values())
    if all(type(value) in (type(None), bool, int, float) for value in constants):
        return repr(values) if values else ""
    # A str has the same hash there as the number or the None that it spells; the globals of a function may change, and
    # so may an object of the user's.
    return repr((values, plan_parts(plan)))
