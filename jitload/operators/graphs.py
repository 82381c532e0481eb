"""Operators in compiled graphs, and within the transforms of `torch.func`."""

from __future__ import annotations

import hashlib
import secrets
import sys
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from types import CodeType, FunctionType
from typing import Any

import torch
from torch._functorch import config as functorch_config
from torch._subclasses.functional_tensor import FunctionalTensorMode

from jitload.operators.checks import check_tangents, flatten, is_recorded
from jitload.triton.key import code_objects, outer_names


def functionalize(mode: FunctionalTensorMode, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
    """Trace a call of an operator, and tell autograd which arguments the operator writes to.

    Also turn off donated buffers, which the backward pass may overwrite. AOTAutograd would treat the written tensors as
    donated buffers, but written tensors may be the program's own arguments.
    """
    functorch_config.donated_buffer = False
    for argument, value in zip(operator._schema.arguments, args, strict=False):
        if argument.alias_info is not None and argument.alias_info.is_write:
            increment_versions(value)
    return mode.__torch_dispatch__(operator, types, args, kwargs)


def increment_versions(value: torch.Tensor | Sequence[torch.Tensor] | None) -> None:
    """Mark an argument as written to, so that autograd detects changes to saved tensors."""
    torch._C._increment_version([tensor for tensor in flatten((value,)) if tensor is not None])


def run_in_transforms(name: str, kernel: Any) -> Callable[..., Any]:
    """Return a function that runs an operator within transforms of `torch.func`. `kernel` is torch's function for that.

    Transforms do not differentiate the operator. Where torch would therefore return zeros as gradients or tangents, the
    returned function raises RuntimeError.
    """

    def run(keys: Any, *args: Any, **kwargs: Any) -> Any:
        kind = torch._C._functorch.peek_interpreter_stack().key()
        if kind == torch._C._functorch.TransformType.Jvp:
            check_tangents(name, args)
        elif kind == torch._C._functorch.TransformType.Grad and is_recorded(args):
            raise RuntimeError(
                f"the operator {name} cannot be differentiated by torch.func.grad, vjp and jacrev; "
                "call torch.autograd.grad or backward"
            )
        return kernel.call_boxed(keys, *args, **kwargs)

    return run


def forget_graphs() -> None:
    """Drop the compiled graphs of this process, because they do not notice a new operator."""
    dynamo: Any = sys.modules.get("torch._dynamo")
    if dynamo is not None and hasattr(dynamo, "reset"):
        dynamo.reset()


def mark_caches(operators: Mapping[str, Any]) -> None:
    """Add a digest of the operators' definitions to the keys of torch's caches of compiled graphs.

    Otherwise, the keys would contain only the operators' names.
    """
    from torch.compiler import config

    tag: str = getattr(config, "cache_key_tag", "").partition(" jitload:")[0]
    parts = ["2"]  # a version number, to be changed whenever `functionalize` changes
    for name, operator in sorted(operators.items()):
        state = operator._jitload_state
        parts += [name, state.plan.schema, state.plan.source]
        functions = (state.fake, state.backward, state.setup_context, state.vmap_rule)
        parts += [_describe_code(function, set()) for function in functions]
    digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()
    config.cache_key_tag = f"{tag} jitload:{digest[:16]}"


def _describe_code(function: Any, seen: set[int]) -> str:
    """Return a text that changes with a function's code, and with the numbers, strings and functions that it uses.

    Used functions are included only if they are in the same module. `seen` has the ids of functions that are already
    included. For an object that is not a Python function, the text is random.
    """
    if function is None or id(function) in seen:
        return ""
    seen.add(id(function))
    if not hasattr(function, "__code__"):
        return secrets.token_hex()  # an object with __call__, for example, may do anything
    texts = []
    for code in code_objects(function.__code__):
        constants = (constant for constant in code.co_consts if not isinstance(constant, CodeType))
        texts.append(repr((code.co_code, code.co_names, code.co_varnames, *constants)))
    outer = sorted(outer_names(function), key=itemgetter(0))
    for value in (*(function.__defaults__ or ()), *(value for _, value in outer)):
        if isinstance(value, int | float | str):
            texts.append(repr(value))
        elif isinstance(value, FunctionType) and value.__globals__ is function.__globals__:
            texts.append(_describe_code(value, seen))
    return "\0".join(texts)
