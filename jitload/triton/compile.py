"""A plan in, a kernel compiled by Triton out: without a GPU, and without lines of source in the machine code."""

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
from jitload.triton.globals import outer_values
from jitload.triton.kernel import GivenKernel
from jitload.triton.key import plan_parts
from jitload.triton.plan import Plan
from jitload.triton.versions import Triton, changed_interface, cuda_backend, cuda_target

_LINE_INFO = "TRITON_DISABLE_LINE_INFO"
_FIRST_WITH_CLUSTERS = 90
_WARPS, _CTAS = 32, 16  # 1024 threads of a block; blocks of a cluster
_lock = threading.Lock()


def compile_plan(given: GivenKernel, plan: Plan, triton: Triton, capability: int) -> Any:
    """Return the kernel compiled for an architecture, from Triton's own cache where that has it.

    Raises:
        CompileError: Triton refuses the kernel.
        SignatureError: Triton cannot read the kernel, or an option is unknown.
    """
    import triton as package

    _check_readable(given)
    numbers = _check_options(given, plan.options, cuda_backend(triton, capability), capability)
    source = _with_outer_values(_source(given, plan, triton), given, plan)
    target = cuda_target(triton, capability)
    options = {"debug": _wants_asserts(given), **plan.options, **numbers}
    try:
        with without_line_info():
            return package.compile(source, target=target, options=options)
    except JitLoadError:
        raise
    except Exception as error:
        raise CompileError(stage="triton", name=given.name, log="\n".join(_words(error))) from error


def _words(error: BaseException) -> Iterator[str]:
    """Yield what an error of Triton's says, and what it was raised from: older releases say the reason there alone."""
    text = f"{type(error).__name__}: {error}"
    yield text
    if error.__cause__ is not None and str(error.__cause__) not in text:
        yield from _words(error.__cause__)


def _wants_asserts(given: GivenKernel) -> bool:
    """Tell whether assertions are compiled in, as Triton decides at a launch."""
    return bool(getattr(given.function, "debug", None)) or os.environ.get("TRITON_DEBUG", "0") == "1"


def _check_options(given: GivenKernel, options: Mapping[str, Any], backend: Any, capability: int) -> dict[str, int]:
    """Refuse options that Triton's compiler would ignore, or take and fail of; return those that are numbers."""
    known = type(backend.parse_options({})).__dataclass_fields__
    unknown = [name for name in options if name not in known]
    if unknown:
        parameters = ", ".join(param.name for param in given.function.params)
        raise SignatureError(
            f"kernel {given.name!r}: {unknown[0]!r} is neither a parameter ({parameters}) nor an option of Triton's "
            "compiler, such as num_warps, num_stages, num_ctas, maxnreg"
        )
    return {name: _number(given, name, value, capability) for name, value in options.items() if name in _NUMBERS}


_NUMBERS = {
    "num_warps": f"a power of 2 from 1 to {_WARPS}: a block has at most {32 * _WARPS} threads, 32 a warp",
    "num_ctas": f"a power of 2 from 1 to {_CTAS}, the most blocks that a cluster has",
    "num_stages": "0 or more",
    "maxnreg": "1 or more",
}


def _number(given: GivenKernel, name: str, value: Any, capability: int) -> int:
    """Return an option that is a number: some that no GPU can run pass Triton's compiler, others end the process."""
    try:
        number = operator.index(value)
    except TypeError:
        number = -1
    most = {"num_warps": _WARPS, "num_ctas": _CTAS}.get(name, 2**31 - 1)
    least = 0 if name == "num_stages" else 1
    is_power = number & (number - 1) == 0 or name not in ("num_warps", "num_ctas")
    if isinstance(value, bool) or not least <= number <= most or not is_power:
        raise SignatureError(f"kernel {given.name!r}: {name}={value!r} must be {_NUMBERS[name]}")
    if name == "num_ctas" and number > 1 and capability < _FIRST_WITH_CLUSTERS:
        raise SignatureError(
            f"kernel {given.name!r}: num_ctas={number} makes clusters, which GPUs have from sm_90 on, and this is for "
            f"sm_{capability}: leave it out there"
        )
    return number


def _source(given: GivenKernel, plan: Plan, triton: Triton) -> Any:
    """Return Triton's own record of what to compile; its form changed with 3.3."""
    try:
        from triton.compiler import ASTSource

        if triton.has_paths:
            attributes = {path: [["tt.divisibility", 16]] for path in plan.multiples}
            return ASTSource(
                fn=given.function, signature=dict(plan.types), constexprs=dict(plan.constants), attrs=attributes
            )
        return _source_of_3_2(given, plan)
    except (ImportError, TypeError, AttributeError) as error:
        raise changed_interface(triton, "ASTSource is not as it was", error) from error


def _with_outer_values(source: Any, given: GivenKernel, plan: Plan) -> Any:
    """Let what Triton's key leaves out be part of it: Triton's own cache would answer for other values, too."""
    if more := _beyond_triton(given, plan):
        own = source.hash()
        source.hash = lambda: hashlib.sha256(f"{own} {more}".encode()).hexdigest()
    return source


def _beyond_triton(given: GivenKernel, plan: Plan) -> str:
    """Return what decides the machine code and is not in Triton's key, as text; random where nobody sees all of it."""
    values = outer_values(given.function)
    if values is None:
        return secrets.token_hex(16)
    constants = (getattr(value, "value", value) for value in plan.constants.values())
    if all(type(value) in (type(None), bool, int, float) for value in constants):
        return repr(values) if values else ""
    # A text, which Triton's key does not tell from the number or the None that it spells; a function, whose globals may
    # change; an object of anybody's.
    return repr((values, plan_parts(plan)))


def _source_of_3_2(given: GivenKernel, plan: Plan) -> Any:
    from triton.backends.compiler import AttrsDescriptor
    from triton.compiler import ASTSource

    if odd := next((name for name, types in plan.types if isinstance(types, tuple)), None):
        raise SignatureError(f"kernel {given.name!r}, parameter {odd!r}: Triton 3.2 knows no tuples; 3.3 does")
    names = [name for name, _ in plan.types]
    fixed = {names[path[0]]: value for path, value in plan.constants.items()}
    # What is assumed to be 1 or None stays in the signature there, with a type that nobody looks at.
    assumed = {name: "*i8" if value is None else "i32" for name, value in fixed.items() if name not in plan.constexprs}
    signature = {name: assumed.get(name, types) for name, types in plan.types if name not in plan.constexprs}
    hints = {path[0]: 16 for path in plan.multiples}
    hints |= {names.index(name): 1 for name, text in assumed.items() if text == "i32"}
    return ASTSource(fn=given.function, signature=signature, constants=fixed, attrs=AttrsDescriptor.from_hints(hints))


@contextmanager
def without_line_info() -> Iterator[None]:
    """Leave lines of source out of what is compiled, unless the user asked for them.

    They make the machine code twice as long and different in each directory. The environment is the one place where
    all releases look, and where Triton's cache takes them into its key. Threads wait here for each other, and lose
    nothing by it: Triton compiles with the GIL held (three kernels, 3.9: 2.1 s one by one, 2.3 s without this lock).
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


def _check_readable(given: GivenKernel) -> None:
    """Let Triton read the kernel and what it calls.

    Raises:
        SignatureError: It cannot.
    """
    try:
        given.function.cache_key  # noqa: B018  reads it all
    except Exception as error:
        raise SignatureError(f"kernel {given.name!r}: Triton cannot read what it uses: {error}") from error
