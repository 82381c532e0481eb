"""Register a function as a PyTorch operator, through `torch.library`'s define and impl.

The operator's kernel is a Python function that is generated for its schema. The kernel allocates the outputs, calls the
registered function, and tells autograd which tensors are written to. The kernel also checks whether a gradient is
needed; the first call that needs one turns on autograd for the operator.
"""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from types import CodeType
from typing import Any

import torch
from torch._ops import OpOverload, OpOverloadPacket, _OpNamespace
from torch._subclasses.functional_tensor import FunctionalTensorMode
from torch.autograd import forward_ad
from torch.fx import operator_schemas

from jitload.errors import LaunchSpecError
from jitload.expressions.python import FUNCTIONS
from jitload.loader.module import Module
from jitload.operators.checks import check_tangents, is_recorded
from jitload.operators.graphs import forget_graphs, functionalize, mark_caches, run_in_transforms
from jitload.operators.plan import Plan, make_plan
from jitload.operators.schema import read_schema
from jitload.operators.signature import check_has_launch, read_function, with_defaults
from jitload.tracebacks import outside_graphs

_QUALIFIED_NAME = re.compile(r"([A-Za-z_]\w*)::([A-Za-z_]\w*)(\.[A-Za-z]\w*)?")
_RESERVED = ("aten", "prim", "prims")
_TRANSFORMS = "FuncTorchDynamicLayerFrontMode"  # the dispatch key of calls within a transform of torch.func
_Library: Any = torch.library.Library  # Any, because the methods of the class have no types
_lock = threading.Lock()
_registered: dict[str, TorchOp] = {}


@outside_graphs(
    "jitload.torch_op cannot be called in functions that torch.compile compiles: call it before, at module level"
)
def torch_op(  # noqa: PLR0913  each is a part of an operator's definition
    name: str,
    function: Any,
    *,
    out: Mapping[str, str] | None = None,
    unwritten: str | Sequence[str] = (),
    schema: str | None = None,
    defaults: Mapping[str, Any] | None = None,
    fake: Callable[..., Any] | None = None,
) -> TorchOp:
    """Register a typed function as a PyTorch operator, or replace the operator of this name.

    The types of the function's parameters give the schema: `const` pointers are inputs, the operator writes to other
    pointers, integers are `SymInt`, and pointers in `Launch.nullable` are optional.

    Args:
        name: The operator's name with its namespace. `my::add` is also available as `torch.ops.my.add`.
            `my::add.scalar` is an overload of `my::add`.
        function: A function of a `jitload.Module`. If `schema` is given, any callable.
        out: A mapping from the names of outputs to rules, `"like x"`, `"float32[n, x.shape[0]]"`, `"x.dtype[n]"`,
            `"zeros like x"`, `"None if x is None else like x"`. The operator allocates and returns the outputs; callers
            do not pass them. If a rule has no dtype, the output has the dtype of its pointer.
        unwritten: Names of pointers that the function only reads, although they are not `const`.
        schema: The schema of a function whose types are unknown, `(Tensor x, Tensor(a!) y, SymInt n) -> ()`. If the
            function returns tensors, the schema names them, `-> (Tensor y)`, and `out` has a rule for each tensor.
        defaults: Default values of arguments of a typed function: `{"eps": 1e-5}`. `schema` has defaults of its own.
        fake: Instead of `out`, the fake function of a function that returns tensors, as for
            `torch.library.register_fake`. It gets the operator's arguments, and returns empty tensors like the results.
            Sizes that depend on data are `torch.library.get_ctx().new_dynamic_size()`.

    Returns:
        The operator, `torch.ops.my.add.default`, with the methods `register_autograd` and `register_vmap`.

    Raises:
        LaunchSpecError: A rule, a name or the schema is wrong, torch has no type for a parameter, or the function is a
            kernel without a grid or block.

    Example:
        `add_one = jitload.torch_op("my::add_one", mod.add_one, out={"y": "like x"})`
    """
    match = _QUALIFIED_NAME.fullmatch(name) if isinstance(name, str) else None
    if match is None or match[1] in _RESERVED:
        raise LaunchSpecError(f"the operator's name is {name!r}; it must be like 'my::add', in a namespace of your own")
    if out is not None and not isinstance(out, Mapping):
        raise LaunchSpecError(f"out={out!r} must be a dict from names to rules", hint='Write out={"y": "like x"}')
    if fake is not None and not callable(fake):
        raise LaunchSpecError(f"fake= must be a function, got {type(fake).__name__}", kernel=name)
    if not callable(function) or isinstance(function, Module):
        problem = f"the operator needs a function, got {type(function).__name__}"
        raise LaunchSpecError(problem, kernel=name, hint="Pass a function of a module, such as mod.add")
    label = str(getattr(function, "__name__", name))
    signature = read_function(function) if schema is None else read_schema(schema, label)
    if defaults and schema is not None:
        raise LaunchSpecError("write them into schema=: 'float eps=1e-5'", kernel=label, field="defaults")
    signature = with_defaults(signature, defaults or {})
    check_has_launch(function)
    unwritten = (unwritten,) if isinstance(unwritten, str) else tuple(unwritten)
    plan = make_plan(name, signature, out or {}, unwritten, has_fake=fake is not None)
    with _lock:
        return _register(plan, function, fake)


class TorchOp(OpOverload):
    """A PyTorch operator that calls a function of jitload, such as `torch.ops.my.add.default`.

    Attributes:
        function: The function that the operator calls.
    """

    function: Any
    _jitload_state: _State

    def register_autograd(
        self, backward: Callable[..., Any], /, *, setup_context: Callable[..., Any] | None = None
    ) -> None:
        """Register the gradient of the operator, or replace it.

        Args:
            backward: `backward(ctx, *grads)`, which returns a gradient or None for each argument of the operator. It
                may call other operators. Gradients of outputs may be non-contiguous.
            setup_context: `setup_context(ctx, inputs, output)`, which saves what `backward` needs. If the schema has
                keyword-only arguments, `setup_context(ctx, inputs, keyword_only_inputs, output)`.

        Raises:
            LaunchSpecError: The operator writes to its arguments.

        Example:
            `square.register_autograd(lambda ctx, g: 2 * ctx.saved_tensors[0] * g, setup_context=save_input)`
        """
        state = self._jitload_state
        for name, value in (("backward", backward), ("setup_context", setup_context or backward)):
            if not callable(value):
                raise TypeError(f"{name} must be a function, got {type(value).__name__}")
        if state.plan.written:
            raise LaunchSpecError(
                f"it writes to {', '.join(state.plan.written)}, so it cannot have a gradient", kernel=state.plan.name,
                hint="Let the operator allocate its results, out={…}, and name the tensors it only reads in unwritten=",
            )  # fmt: skip
        state.backward, state.setup_context = backward, setup_context
        state.make_differentiable(self)
        forget_graphs()
        mark_caches(_registered)

    def register_vmap(self, rule: Callable[..., Any], /) -> Callable[..., Any]:
        """Register a rule for `torch.vmap`: `rule(info, in_dims, *args)` returns the outputs and their `out_dims`.

        The rule also gets the operator's keyword-only arguments, by their names.
        """
        if not callable(rule):
            raise TypeError(f"the rule for vmap must be a function, got {type(rule).__name__}")
        self._jitload_state.vmap_rule = rule
        self._jitload_state.make_batched(self)
        forget_graphs()
        mark_caches(_registered)
        return rule

    def __reduce__(self) -> tuple[Any, ...]:
        """Return how to unpickle the operator. The unpickling process must have registered the operator first."""
        return _find_operator, (self._jitload_state.plan.name,)


class _State:
    """The replaceable functions of an operator. The callbacks registered in torch look up the functions here."""

    def __init__(self, library: Any) -> None:
        self.library = library
        self.fallthrough: Any = None  # the library that keeps autograd from seeing the operator
        self.registered: set[str] = set()  # the dispatch keys that are registered in torch
        self.names: dict[str, Any] = {}  # the global variables of the operator's functions

    def set(self, plan: Plan, function: Any, fake: Any) -> None:
        """Set the definition and the function of the operator. Drop its gradient and its rule for vmap."""
        self.plan = plan
        self.fake = fake
        self.backward: Callable[..., Any] | None = None
        self.setup_context: Callable[..., Any] | None = None
        self.vmap_rule: Callable[..., Any] | None = None
        functions = {name: self.names.get(name) for name in ("impl", "fake")}
        _compile(self, function)
        for name, registered in functions.items():
            if registered is not None:
                registered.__code__ = self.names[name].__code__
                self.names[name] = registered

    def make_differentiable(self, operator: TorchOp) -> None:
        """Let autograd record the operator from now on. Without a registered gradient, a backward pass raises an error.

        Until this method is called, calls avoid autograd's Python code, which takes several microseconds.
        """
        with _lock:
            if "Autograd" not in self.registered:
                self.fallthrough._destroy()
                run, prepare = self._run_backward, self._run_setup
                torch.library.register_autograd(operator, run, setup_context=prepare, lib=self.library)
                self.registered.add("Autograd")
                operator._dispatch_cache.clear()  # otherwise, torch would continue to leave out the gradient

    def make_batched(self, operator: TorchOp) -> None:
        """Let `torch.vmap` call the operator's rule for vmap."""
        with _lock:
            if "Batched" not in self.registered:
                torch.library.register_vmap(operator, self._run_vmap, lib=self.library)
                self.registered.add("Batched")
                operator._dispatch_cache.clear()

    def _run_setup(
        self, ctx: Any, inputs: tuple[Any, ...], output: Any, keyword_only_inputs: dict[str, Any] | None = None
    ) -> None:
        if self.setup_context is not None:
            has_keywords = any(argument.keyword for argument in self.plan.inputs)
            self.setup_context(ctx, inputs, *((keyword_only_inputs,) if has_keywords else ()), output)

    def _run_backward(self, ctx: Any, *grads: Any) -> Any:
        if self.backward is None:
            name = self.plan.name
            raise RuntimeError(
                f"the operator {name} has no gradient. Register one with the operator's method "
                "register_autograd(backward, setup_context=…), or detach its inputs"
            )
        return self.backward(ctx, *grads)

    def _run_vmap(self, info: Any, in_dims: Any, *args: Any, **kwargs: Any) -> Any:
        if self.vmap_rule is None:
            raise RuntimeError(
                f"the operator {self.plan.name} was registered again, and has no rule for vmap any more: register one "
                "with the new operator's method register_vmap(rule)"
            )
        return self.vmap_rule(info, in_dims, *args, **kwargs)


# ---- registration ------------------------------------------------------------------------------------------------


def _register(plan: Plan, function: Any, fake: Any) -> TorchOp:
    operator = _registered.get(plan.name)
    if operator is not None:
        forget_graphs()
    if operator is None or operator._jitload_state.plan.schema != plan.schema:
        state = _State(_define(plan, operator))
        state.set(plan, function, fake)
        operator = _implement(state)
    else:
        operator._jitload_state.set(plan, function, fake)
    operator.function = function
    mark_caches(_registered)
    return operator


def _define(plan: Plan, previous: TorchOp | None) -> Any:
    """Define the operator in torch. Return the `torch.library.Library` that holds the definition.

    `previous` is None, or an operator of the same name with another schema. This operator is removed first.
    """
    namespace, short_name = plan.name.split("::")
    _check_name(plan)
    if previous is not None:
        del _registered[plan.name]
        previous._jitload_state.library._destroy()
        previous._jitload_state.fallthrough._destroy()
        previous._op = previous._op_dk = _retired(plan.name)  # otherwise its calls would use freed memory
        base, _, overload = plan.name.partition(".")
        operator_schemas._SCHEMA_TO_SIGNATURE_CACHE.pop((base, overload), None)
    library = _Library(namespace, "FRAGMENT")
    try:
        library.define(f"{short_name}{plan.schema}", tags=(torch.Tag.pt2_compliant_tag, torch.Tag.needs_exact_strides))
    except RuntimeError as error:
        problem = f"torch already has an operator {plan.name}, which torch_op did not register; choose another name"
        raise LaunchSpecError(problem, kernel=plan.signature.name) from error
    return library


def _check_name(plan: Plan) -> None:
    """Raise LaunchSpecError if torch cannot parse the name, or if `torch.ops` has a non-operator of this name."""
    problem = f"torch refuses the operator {plan.name}"
    try:
        torch._C.parse_schema(f"{plan.name}{plan.schema}")
    except RuntimeError as error:
        raise LaunchSpecError(f"{problem}: {error}", kernel=plan.signature.name) from None
    if hasattr(OpOverloadPacket, plan.name.partition(".")[2] or "default"):
        problem = f"{problem}: its part after the dot is a name of torch's own; choose another one"
        raise LaunchSpecError(problem, kernel=plan.signature.name)
    namespace, short_name = plan.name.partition(".")[0].split("::")
    operators = getattr(torch.ops, namespace)
    packet = getattr(operators, short_name, None)
    if not isinstance(operators, _OpNamespace) or not isinstance(packet, OpOverloadPacket | None):
        problem = f"{problem}: torch.ops.{namespace}.{short_name} exists and is not an operator; choose another name"
        raise LaunchSpecError(problem, kernel=plan.signature.name)


def _implement(state: _State) -> TorchOp:
    """Register the kernel and the fake function of a defined operator. Return the operator."""
    name = state.plan.name
    namespace, short_name = name.split("::")
    state.library.impl(short_name, state.names["impl"], "CompositeExplicitAutograd")
    # Without this, torch's own fallback would warn in the backward pass before the operator's error is raised.
    state.fallthrough = _Library(namespace, "FRAGMENT")
    state.fallthrough.impl(short_name, torch.library.fallthrough_kernel, "Autograd")
    torch.library.register_fake(name, state.names["fake"], lib=state.library)
    if state.plan.written:
        torch.library.register_torch_dispatch(name, FunctionalTensorMode, functionalize, lib=state.library)
    base, _, overload = name.partition(".")
    packet = getattr(getattr(torch.ops, namespace), base.partition("::")[2])
    for other in _registered.values():  # torch forgets all overloads if one of them is defined again
        if other._jitload_state.plan.name.partition(".")[0] == base:
            setattr(packet, other._overloadname, other)
    operator: TorchOp = getattr(packet, overload or "default")
    operator.__class__ = TorchOp
    operator._jitload_state = state
    kernel = torch.library.get_kernel(operator, _TRANSFORMS)
    state.library.impl(short_name, run_in_transforms(name, kernel), _TRANSFORMS, with_keyset=True)
    _registered[name] = operator
    return operator


def _retired(name: str) -> Callable[..., Any]:
    def refuse(*_: Any, **__: Any) -> Any:
        raise RuntimeError(f"the operator {name} was registered again with another schema; use the new one")

    return refuse


def _compile(state: _State, function: Any) -> None:
    """Compile the generated source of the operator, and store its functions in `state.names`."""
    plan = state.plan
    names = state.names
    has_keywords = any(argument.keyword for argument in plan.inputs)
    names |= {
        **FUNCTIONS,
        "_fake": state.fake,
        "_to_device": _device_converter(function),
        "_function": _without_keywords(function) if has_keywords and _is_ffi_function(function) else function,
    }
    names |= {f"_default_{argument.name}": argument.default[0] for argument in plan.inputs if argument.default}

    def prepare(values: tuple[Any, ...]) -> None:
        if is_recorded(values):
            _prepare_gradient(plan)

    def without_gradient(*args: Any, **kwargs: Any) -> Any:
        if forward_ad._current_level >= 0:
            check_tangents(plan.name, args)
        if not is_recorded(args) or torch._C._get_autograd_fallback_mode() == "nothing":
            return names["launch"](*args, **kwargs)
        return _prepare_gradient(plan)(*args, **kwargs)

    names |= {"_prepare": prepare, "_without_gradient": without_gradient, "_device": _default_device(plan)}
    exec(compile(plan.source, f"<operator {plan.name}>", "exec"), names)  # noqa: S102  our own text
    for name in ("launch", "impl"):
        _keep_out_dynamo(names[name].__code__)


def _keep_out_dynamo(code: CodeType) -> None:
    """Keep torch.compile from tracing a function and its callees after a graph break."""
    frames = torch._C._dynamo.eval_frame
    skip = frames._FrameAction.SKIP
    frames.set_code_exec_strategy(code, frames._FrameExecStrategy(skip, skip))


def _prepare_gradient(plan: Plan) -> TorchOp:
    """Return an operator with autograd turned on. Raise RuntimeError if the operator writes to its arguments."""
    if plan.written:
        raise RuntimeError(
            f"the operator {plan.name} writes to {', '.join(plan.written)}, so no gradient can pass through it, but "
            "an argument requires one. Call it under torch.no_grad(), detach its arguments, or let it allocate its "
            "results, out={…}"
        )
    operator = _registered[plan.name]
    operator._jitload_state.make_differentiable(operator)
    return operator


def _default_device(plan: Plan) -> Callable[[torch.device | None], torch.device]:
    """Return a function that chooses the device of the outputs if a call passes no tensors."""

    def choose(device: torch.device | None) -> torch.device:
        if device is not None:
            return device
        has_gpu = "CUDA" in plan.signature.devices and (
            torch.cuda.is_available() or "CPU" not in plan.signature.devices
        )
        return torch.device("cuda" if has_gpu else "cpu")

    return choose


def _device_converter(function: Any) -> Callable[[torch.device | None], Any]:
    """Return a function that converts a device of torch to the type that the operator's function takes."""
    if not _is_ffi_function(function):
        return lambda device: device
    tvm_ffi: Any = sys.modules["tvm_ffi"]
    return lambda device: None if device is None else tvm_ffi.device(str(device))


def _without_keywords(function: Any) -> Any:
    """Return a function that passes keyword arguments by position, because functions of tvm-ffi have no names."""
    return lambda *args, **kwargs: function(*args, *kwargs.values())


def _is_ffi_function(function: Any) -> bool:
    tvm_ffi: Any = sys.modules.get("tvm_ffi")
    return tvm_ffi is not None and isinstance(function, tvm_ffi.Function)


def _find_operator(name: str) -> TorchOp:
    if name not in _registered:
        raise LaunchSpecError(f"the operator {name} is not registered in this process: call jitload.torch_op first")
    return _registered[name]
