"""Register a function as an operator of torch, through `torch.library`'s define and impl.

The operator's kernel is a Python function that is written for its schema, like one that a person would write: it
allocates the outputs and calls the function. Two more checks are in it: tensors that need a gradient, when the operator
has none, and tensors that autograd has saved and that are written to.
"""

from __future__ import annotations

import hashlib
import re
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import CodeType
from typing import Any, NamedTuple

import torch
from torch._ops import OpOverload

from jitload.errors import LaunchSpecError, outside_graphs
from jitload.expressions.python import FUNCTIONS
from jitload.operators.arguments import Argument, Signature, check_names, read_function, read_schema
from jitload.operators.checks import check_tensors
from jitload.operators.outputs import Allocator, allocation_names, parse_rule

_QUALIFIED_NAME = re.compile(r"([A-Za-z_]\w*)::([A-Za-z_]\w*)")
_RESERVED = ("aten", "prim", "prims")
_lock = threading.Lock()
_registered: dict[str, TorchOp] = {}
_anchors: dict[str, torch.library.Library] = {}  # keep entries of the dispatcher, to which old graphs may refer


class Plan(NamedTuple):
    """What an operator does.

    Attributes:
        name: The qualified name, `my::add`.
        signature: What the function takes and returns.
        inputs: The arguments of the operator.
        schema: The operator's schema, without the name.
        source: The Python text of `launch`, `impl` and `fake`.
    """

    name: str
    signature: Signature
    inputs: tuple[Argument, ...]
    schema: str
    source: str

    @property
    def written(self) -> tuple[str, ...]:
        """The names of the arguments that the operator writes to."""
        return tuple(argument.name for argument in self.inputs if argument.is_written)


class TorchOp(OpOverload):
    """An operator of torch that calls a function of jitload: `torch.ops.my.add.default`, with methods to extend it.

    Attributes:
        function: The function that it calls.
    """

    function: Any
    _jitload_state: _State

    def register_autograd(
        self, backward: Callable[..., Any], /, *, setup_context: Callable[..., Any] | None = None
    ) -> None:
        """Register the gradient, or replace it.

        Args:
            backward: `backward(ctx, *grads)`, which returns a gradient or None for each argument of the operator. It may
                call other operators. Gradients of outputs may be non-contiguous.
            setup_context: `setup_context(ctx, inputs, output)`, which saves what `backward` needs.

        Raises:
            LaunchSpecError: The operator writes to its arguments.

        Example:
            `square.register_autograd(lambda ctx, g: 2 * ctx.saved_tensors[0] * g, setup_context=save_input)`
        """
        state = self._jitload_state
        if state.plan.written:
            raise LaunchSpecError(
                f"it writes to {', '.join(state.plan.written)}, so it cannot have a gradient", kernel=state.plan.name,
                hint="Let the operator allocate its results, out={…}, and name tensors that it only reads in unwritten=",
            )  # fmt: skip
        state.backward, state.setup_context = backward, setup_context
        state.make_differentiable(self)
        _forget_graphs()
        _mark_caches()

    def register_vmap(self, rule: Callable[..., Any], /) -> Callable[..., Any]:
        """Register `rule(info, in_dims, *args)` for `torch.vmap`, which returns the outputs and their `out_dims`."""
        torch.library.register_vmap(self, rule, lib=self._jitload_state.library)
        self._dispatch_cache.clear()
        return rule

    def __reduce__(self) -> tuple[Any, ...]:
        """Return how to find it in another process, which has to register it as well."""
        return _find_operator, (self._jitload_state.plan.name,)


class _State:
    """What is registered for an operator, and its gradient."""

    def __init__(self, plan: Plan, library: torch.library.Library) -> None:
        self.plan = plan
        self.library = library
        self.backward: Callable[..., Any] | None = None
        self.setup_context: Callable[..., Any] | None = None
        self.is_differentiable = False

    def make_differentiable(self, operator: TorchOp) -> None:
        """Let autograd record the operator from now on; without a gradient, the backward pass raises an error.

        It does not do so at first, because a call through autograd's Python takes several microseconds.
        """
        with _lock:
            if not self.is_differentiable:
                torch.library.register_autograd(
                    operator, self._run_backward, setup_context=self._run_setup, lib=self.library
                )
                self.is_differentiable = True
                operator._dispatch_cache.clear()  # torch would go on as if there were no gradient

    def _run_setup(self, ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        if self.setup_context is not None:
            self.setup_context(ctx, inputs, output)

    def _run_backward(self, ctx: Any, *grads: Any) -> Any:
        if self.backward is None:
            name = self.plan.name
            raise RuntimeError(
                f"the operator {name} has no gradient. Register one with the operator's method "
                "register_autograd(backward, setup_context=…), or detach its inputs"
            )
        return self.backward(ctx, *grads)


@outside_graphs("register operators outside of compiled functions: call jitload.torch_op before, at module level")
def torch_op(  # noqa: PLR0913  each is a part of an operator's definition
    name: str,
    function: Any,
    *,
    out: Mapping[str, str] | None = None,
    unwritten: str | Sequence[str] = (),
    schema: str | None = None,
    autocast: bool | str | torch.dtype = False,
) -> TorchOp:
    """Register a typed function as an operator of torch, or replace the operator of that name.

    The schema follows from the types of the function's parameters: `const` pointers are inputs, other pointers are
    written to, integers are `SymInt`, and pointers that the `Launch` names `nullable` are optional.

    Args:
        name: The operator's name with its namespace, `my::add`; it is then also `torch.ops.my.add`.
        function: A function of a `jitload.Module`; with `schema`, anything that can be called.
        out: A rule for each tensor that the operator allocates and returns instead of taking it: `"like x"`,
            `"float32[n, x.shape[0]]"`, `"x.dtype[n]"`, `"zeros like x"`. Without a dtype, that of the pointer is taken.
        unwritten: Names of pointers that are not `const`, but are only read.
        schema: What the function takes, `(Tensor x, Tensor(a!) y, SymInt n) -> ()`, if its types do not tell. It may
            declare named results, `-> (Tensor y)`, of a function that returns tensors; `out` then has rules for them.
        autocast: Under `torch.autocast`, convert floating-point inputs to this dtype, or with True to the dtypes of the
            function's pointers. By default, autocast changes nothing.

    Returns:
        The operator, `torch.ops.my.add.default`, with the methods `register_autograd` and `register_vmap`.

    Raises:
        LaunchSpecError: A rule, a name or the schema is wrong, or torch has no type for a parameter.

    Example:
        `add_one = jitload.torch_op("my::add_one", mod.add_one, out={"y": "like x"})`
    """
    match = _QUALIFIED_NAME.fullmatch(name) if isinstance(name, str) else None
    if match is None or match[1] in _RESERVED:
        raise LaunchSpecError(f"the operator's name is {name!r}; it must be like 'my::add', in a namespace of your own")
    label = str(getattr(function, "__name__", name))
    signature = read_function(function) if schema is None else read_schema(schema, label)
    plan = make_plan(name, signature, out or {}, (unwritten,) if isinstance(unwritten, str) else tuple(unwritten))
    casts = _autocast_dtypes(plan, autocast)
    with _lock:
        operator = _register(plan, function, match[1], match[2])
    if casts:
        _register_autocast(operator, casts)
    return operator


# ---- the plan ----------------------------------------------------------------------------------------------------


def make_plan(name: str, signature: Signature, out: Mapping[str, str], unwritten: Sequence[str]) -> Plan:
    """Return what an operator does, without registering it."""
    function, arguments = signature.name, signature.arguments
    check_names(unwritten, arguments, function=function, field="unwritten")
    if signature.returns:
        _check_results(signature, out)
    else:
        check_names(out, arguments, function=function, field="out")
    if both := [item for item in unwritten if item in out]:
        raise LaunchSpecError(f"{both[0]!r} is in out as well, so it is written", kernel=function, field="unwritten")
    inputs = tuple(_as_read(a) if a.name in unwritten else a for a in arguments if a.name not in out)
    allocator = Allocator(function, arguments, inputs)
    sources = {key: allocator.allocate(parse_rule(key, rule, function)) for key, rule in out.items()}
    needs_device = bool(out) and not allocator.model
    declarations = [argument.declaration for argument in inputs]
    declarations += ["*, Device? device=None"] if needs_device else []
    returns = "Tensor" if len(out) == 1 else f"({', '.join('Tensor' for _ in out)})"
    schema = f"({', '.join(declarations)}) -> {returns}"
    source = _write_source(signature, inputs, sources, ["*", "device=None"] if needs_device else [])
    return Plan(name, signature, inputs, schema, source)


def _check_results(signature: Signature, out: Mapping[str, str]) -> None:
    """Raise an error unless there is a rule for each tensor that the function returns, and for no other."""
    if tuple(out) != signature.returns:
        names = ", ".join(signature.returns)
        raise LaunchSpecError(
            f"it must have a rule for each result, {names}, in this order; they are those of the schema",
            kernel=signature.name, field="out", hint='schema="(Tensor x) -> (Tensor y)", out={"y": "like x"}',
        )  # fmt: skip


def _as_read(argument: Argument) -> Argument:
    declaration = re.sub(r"\(\w+!\)", "", argument.declaration)
    return argument._replace(is_written=False, declaration=declaration)


_SOURCE = """\
def launch({parameters}):
{launch}

def impl({parameters}):
    if _any_requires_grad({tensors}) and _is_grad_enabled():
        return _without_gradient({passed})
{launch}

def fake({parameters}):
    _check({passed_tensors})
{fake}
"""


def _write_source(
    signature: Signature, inputs: Sequence[Argument], outputs: Mapping[str, str], extra: Sequence[str]
) -> str:
    """Return the Python text of the operator's functions."""
    tensors = [f"a_{argument.name}" for argument in inputs if argument.is_tensor]
    names = [f"a_{argument.name}" for argument in inputs]
    allocations = [f"    a_{name} = {source}" for name, source in outputs.items()]
    results = f"    return {', '.join(f'a_{name}' for name in outputs)}" if outputs else "    return None"
    arguments = ", ".join(f"a_{argument.name}" for argument in signature.arguments)
    if signature.returns:
        launch = [f"    return _fresh(_function({arguments}), {_tuple(tensors)})"]
    else:
        launch = [*allocations, *_count_versions(inputs), f"    _function({arguments})", results]
    return _SOURCE.format(
        parameters=", ".join([*names, *extra]),
        passed=", ".join([*names, *(["device=device"] if extra else [])]),
        tensors=", ".join(tensors),
        passed_tensors=_tuple(tensors),
        launch="\n".join(launch),
        fake="\n".join([*allocations, results]),
    )


def _tuple(names: Sequence[str]) -> str:
    return f"({''.join(f'{name}, ' for name in names)})"


def _count_versions(inputs: Sequence[Argument]) -> Iterator[str]:
    """Yield the lines that tell autograd which tensors are written to, so that it notices changes to saved ones."""
    for argument in inputs:
        if argument.is_written:
            condition = f"if a_{argument.name} is not None: " if argument.is_nullable else ""
            yield f"    {condition}_increment_version((a_{argument.name},))"


# ---- registration ------------------------------------------------------------------------------------------------


def _register(plan: Plan, function: Any, namespace: str, short_name: str) -> TorchOp:
    previous = _registered.pop(plan.name, None)
    if previous is not None:
        previous._jitload_state.library._destroy()
        _forget_graphs()
    _anchor(namespace, short_name)
    library = torch.library.Library(namespace, "FRAGMENT")
    try:
        library.define(f"{short_name}{plan.schema}", tags=(torch.Tag.pt2_compliant_tag, torch.Tag.needs_exact_strides))
    except RuntimeError as error:
        if "multiple times" not in str(error):
            raise
        problem = f"{plan.name} is already an operator, which torch_op did not register; choose another name"
        raise LaunchSpecError(problem, kernel=plan.signature.name) from None
    state = _State(plan, library)
    functions = _compile(state, function)
    library.impl(short_name, functions["impl"], "CompositeExplicitAutograd")
    torch.library.register_fake(plan.name, functions["fake"], lib=library)
    operator: TorchOp = getattr(getattr(torch.ops, namespace), short_name).default
    operator.__class__ = TorchOp
    operator.function, operator._jitload_state = function, state
    _registered[plan.name] = operator
    _mark_caches()
    return operator


def _anchor(namespace: str, short_name: str) -> None:
    """Keep the dispatcher's entry for a name: graphs that were compiled for a replaced operator would use freed memory.

    A kernel for a device that nobody has does this; old graphs then call the new operator.
    """
    name = f"{namespace}::{short_name}"
    if name not in _anchors:
        _anchors[name] = torch.library.Library(namespace, "FRAGMENT")
        _anchors[name].impl(short_name, _refuse_device, "MAIA")


def _refuse_device(*_: Any, **__: Any) -> None:
    raise NotImplementedError("jitload has no kernels for this device")


def _compile(state: _State, function: Any) -> dict[str, Any]:
    """Return the operator's functions."""
    plan = state.plan
    tensors = tuple(argument for argument in plan.inputs if argument.is_tensor)
    names = {**FUNCTIONS, **allocation_names()}
    names |= {"_any_requires_grad": torch._C._any_requires_grad, "_is_grad_enabled": torch.is_grad_enabled}
    names |= {"_increment_version": torch._C._increment_version, "_function": function, "_fresh": _check_fresh}

    def check(values: tuple[Any, ...]) -> None:
        check_tensors(plan.signature, tensors, values)
        if torch._C._any_requires_grad(*values) and torch.is_grad_enabled():
            _prepare_gradient(plan)

    def without_gradient(*args: Any, **kwargs: Any) -> Any:
        if torch._C._get_autograd_fallback_mode() == "nothing":
            return names["launch"](*args, **kwargs)
        return _prepare_gradient(plan)(*args, **kwargs)

    names |= {"_check": check, "_without_gradient": without_gradient, "_device": _default_device(plan)}
    exec(compile(plan.source, f"<operator {plan.name}>", "exec"), names)  # noqa: S102  our own text
    return names


def _prepare_gradient(plan: Plan) -> TorchOp:
    """Let autograd record the operator, for a call with tensors that need a gradient.

    Raises:
        RuntimeError: The operator writes to its arguments, so it cannot have a gradient.
    """
    if plan.written:
        raise RuntimeError(
            f"the operator {plan.name} writes to {', '.join(plan.written)}, so no gradient can pass through it, but one "
            "of its arguments requires one. Call it under torch.no_grad(), detach its arguments, or let it allocate its "
            "results, out={…}"
        )
    operator = _registered[plan.name]
    operator._jitload_state.make_differentiable(operator)
    return operator


def _default_device(plan: Plan) -> Callable[[torch.device | None], torch.device]:
    """Return a function that chooses the device of an operator without tensors among its arguments."""

    def choose(device: torch.device | None) -> torch.device:
        if device is not None:
            return device
        has_gpu = "CUDA" in plan.signature.devices and (
            torch.cuda.is_available() or "CPU" not in plan.signature.devices
        )
        return torch.device("cuda" if has_gpu else "cpu")

    return choose


def _check_fresh(results: Any, tensors: tuple[Any, ...]) -> Any:
    """Return the results of a function; torch relies on it that an operator does not return its arguments."""
    memory = {tensor.untyped_storage().data_ptr() for tensor in tensors if isinstance(tensor, torch.Tensor)} - {0}
    for result in results if isinstance(results, tuple | list) else (results,):
        if isinstance(result, torch.Tensor) and result.untyped_storage().data_ptr() in memory:
            raise RuntimeError("an operator must not return one of its arguments or a view of it; return a copy")
    return tuple(results) if isinstance(results, list) else results


def _find_operator(name: str) -> TorchOp:
    """Return the operator of a name, for pickle."""
    if name not in _registered:
        raise LaunchSpecError(f"the operator {name} is not registered in this process: call jitload.torch_op first")
    return _registered[name]


# ---- autocast ----------------------------------------------------------------------------------------------------


def _autocast_dtypes(plan: Plan, autocast: object) -> tuple[torch.dtype | None, ...]:
    """Return the dtype that each argument is converted to under autocast; empty if autocast changes nothing."""
    if autocast is False or autocast is None:
        return ()
    if autocast is True:
        dtypes = [getattr(torch, argument.dtypes[0] or "", None) for argument in plan.inputs]
        if any(len(set(argument.dtypes)) > 1 for argument in plan.inputs if argument.is_tensor):
            problem = "its kernels take several dtypes: name one, autocast='float16'"
            raise LaunchSpecError(problem, kernel=plan.signature.name, field="autocast")
    else:
        dtype = getattr(torch, autocast, None) if isinstance(autocast, str) else autocast
        if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
            problem = f"must be True or a floating-point dtype, got {autocast!r}"
            raise LaunchSpecError(problem, kernel=plan.signature.name, field="autocast")
        dtypes = [dtype for _ in plan.inputs]
    return tuple(
        dtype if a.is_tensor and not a.is_written and dtype is not None and dtype.is_floating_point else None
        for a, dtype in zip(plan.inputs, dtypes, strict=True)
    )


def _register_autocast(operator: TorchOp, dtypes: tuple[torch.dtype | None, ...]) -> None:
    library = operator._jitload_state.library
    for key in ("AutocastCPU", "AutocastCUDA"):
        keys = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key))
        library.impl(operator._opname, _caster(operator, keys, dtypes), key)


def _caster(operator: TorchOp, keys: Any, dtypes: tuple[torch.dtype | None, ...]) -> Callable[..., Any]:
    def cast(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(keys):
            return operator(*map(_convert, args, dtypes), **kwargs)

    return cast


def _convert(value: Any, dtype: torch.dtype | None) -> Any:
    is_float = dtype is not None and isinstance(value, torch.Tensor) and value.is_floating_point()
    return value.to(dtype) if is_float else value


# ---- compiled graphs ---------------------------------------------------------------------------------------------


def _forget_graphs() -> None:
    """Drop what torch has compiled in this process: graphs do not notice that an operator was replaced."""
    dynamo: Any = sys.modules.get("torch._dynamo")
    if dynamo is not None and hasattr(dynamo, "reset"):
        dynamo.reset()


def _mark_caches() -> None:
    """Put what the operators do into the keys of torch's caches of compiled graphs, which have only their names."""
    from torch.compiler import config

    tag: str = getattr(config, "cache_key_tag", "").partition(" jitload:")[0]
    parts: list[str] = []
    for name, operator in sorted(_registered.items()):
        state = operator._jitload_state
        parts += [name, state.plan.schema, state.plan.source]
        parts += [_describe_code(function) for function in (state.backward, state.setup_context)]
    digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()
    config.cache_key_tag = f"{tag} jitload:{digest[:16]}"


def _describe_code(function: Any) -> str:
    """Return what a Python function does, as far as its own code tells."""
    code = getattr(function, "__code__", None)
    return repr(list(_walk_code(code))) if code is not None else ""


def _walk_code(code: CodeType) -> Iterator[object]:
    yield from (code.co_code, code.co_names, code.co_varnames)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _walk_code(constant)
        else:
            yield constant
