"""Reads `variants=`: the specializations of a Triton kernel among which a function chooses."""

from __future__ import annotations

import copy
import logging
import re
from collections.abc import Mapping, Sequence
from typing import Any

from jitload.errors import JitLoadError, SignatureError
from jitload.request.request import VariantSource
from jitload.request.tune import Values
from jitload.signature.exports import make_unique_name
from jitload.triton.kernel import CompileSpec, TritonKernel, config_values, example_arguments, show_values

_logger = logging.getLogger(__name__)


def specs_of_variants(kernel: TritonKernel, spec: CompileSpec) -> list[tuple[str, CompileSpec, Values]]:
    """Return the name, the spec and the values of each variant in `spec.variants`."""
    rows = _variant_rows(kernel, spec)
    row_values = [_flat_values(config_values(row)) for row in rows]
    _check_used(kernel, spec, row_values)
    differing = {key for values in row_values for key in values if len({repr(v.get(key)) for v in row_values}) > 1}
    names = {param.name for param in kernel.params}
    variants: dict[str, tuple[CompileSpec, Values]] = {}
    for number, (row, values) in enumerate(zip(rows, row_values, strict=True)):
        words = [f"{key}_{_word(value)}" for key, value in values.items() if key in names or key in differing]
        words = words or [f"variant_{number}"]  # not the kernel's own name, which the dispatcher has
        own = tuple((key, v if isinstance(v, int | str) else repr(v)) for key, v in values.items())
        name = make_unique_name("__".join((kernel.name, *words)), variants)
        variants[name] = _variant_spec(kernel, spec, row), own
    return [(name, *pair) for name, pair in variants.items()]


def distinct_variants(
    kernel: TritonKernel, spec: CompileSpec, variants: Sequence[VariantSource]
) -> list[VariantSource]:
    """Return the variants whose plans differ from all earlier ones.

    Raise SignatureError if the caller has listed two variants with the same machine code. The configurations of an
    autotuned kernel may repeat each other, as in Triton.
    """
    distinct: list[VariantSource] = []
    for number, variant in enumerate(variants):
        plan = variant.plan
        earlier = next((n for n, other in enumerate(variants[:number]) if plan == other.plan), None)
        if earlier is None:
            distinct.append(variant)
        elif spec.variants != "all":
            constants = {kernel.params[path[0]].name: value for path, value in plan.constants.items()}
            raise SignatureError(
                f"kernel {kernel.name!r}: variants[{earlier}] and variants[{number}] are the same "
                f"({show_values({**constants, **plan.options})}), so {variant.name!r} would never run: leave one out"
            )
    return distinct


def _variant_rows(kernel: TritonKernel, spec: CompileSpec) -> list[Any]:
    """Return `variants=` as a list of mappings or configurations."""
    variants: Any = spec.variants
    if isinstance(variants, str) and variants == "all":
        if not kernel.configs:
            raise SignatureError(
                f"kernel {kernel.name!r}: variants='all' is for autotuned kernels, and this one has no configurations: "
                "list them, variants=[{'BLOCK': 512}, …]"
            )
        return _pruned_configs(kernel, spec)
    if isinstance(variants, str | Mapping) or not isinstance(variants, Sequence):
        raise SignatureError(f"variants= must be a list of mappings, or 'all', got {variants!r}")
    if not variants:
        raise SignatureError("variants= is empty; leave it out to build a single variant")
    for number, row in enumerate(variants):
        if not isinstance(row, Mapping) and not hasattr(row, "kwargs"):
            raise SignatureError(
                f"kernel {kernel.name!r}: variants[{number}] must be a mapping, {{'BLOCK': 512}}, or a triton.Config, "
                f"got {type(row).__name__}"
            )
    return list(variants)


def _pruned_configs(kernel: TritonKernel, spec: CompileSpec) -> list[Any]:
    """Return the configurations without those that `prune_configs_by` of the decorator leaves out."""
    autotuner = copy.copy(kernel.autotuner)
    if not (getattr(autotuner, "early_config_prune", None) or getattr(autotuner, "perf_model", None)):
        return list(kernel.configs)
    if not example_arguments(kernel, spec):
        _logger.warning("%s: prune_configs_by is not used, because there are no example arguments", kernel.name)
        return list(kernel.configs)
    autotuner.nargs = dict(zip([param.name for param in kernel.params], spec.args, strict=False))
    try:
        return list(autotuner.prune_configs({**spec.named_args, **spec.constexprs, **spec.options}))
    except Exception as error:
        raise JitLoadError(f"kernel {kernel.name!r}: its prune_configs_by failed: {error!r}") from error


def _check_used(kernel: TritonKernel, spec: CompileSpec, row_values: Sequence[Mapping[str, Any]]) -> None:
    """Raise SignatureError if `config=` is passed, or if every variant overrides a value that is passed for all."""
    if spec.config is not None:
        raise SignatureError(
            f"kernel {kernel.name!r}: config= chooses one configuration, and variants= builds several: pass one of "
            "the two, and values for all variants as constexprs="
        )
    for name, value in {**spec.constexprs, **spec.options}.items():
        if all(values.get(name) is not None for values in row_values):
            raise SignatureError(
                f"kernel {kernel.name!r}: each of the variants has a {name!r} of its own, so {name}={value!r} beside "
                "variants= would not be used: leave it out"
            )


def _flat_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a variant's values and the types in its `signature` as one mapping."""
    signature = values.get("signature", {})
    types = signature if isinstance(signature, Mapping) else {"signature": signature}
    return {**{key: value for key, value in values.items() if key != "signature"}, **types}


def _word(value: Any) -> str:
    """Return a value as part of a name: `512`, `0_5`, `m1`, `fp32_16`."""
    text = re.sub(r"^-", "m", str(value))
    return re.sub(r"[^A-Za-z0-9]+", "_", text).strip("_")


def _variant_spec(kernel: TritonKernel, spec: CompileSpec, row: Any) -> CompileSpec:
    """Return the spec with a variant's values, which override the values for all variants."""
    signature, values = spec.signature, config_values(row)
    if "signature" in values:
        types = values.pop("signature")
        if not isinstance(signature, Mapping) or not isinstance(types, Mapping):
            raise SignatureError(
                f"kernel {kernel.name!r}: a variant's 'signature' maps some parameters to other types than "
                "signature= does, so signature= must be a mapping, too"
            )
        signature = {**signature, **types}
    return spec._replace(
        signature=signature,
        constexprs={key: value for key, value in spec.constexprs.items() if key not in values},
        options={key: value for key, value in spec.options.items() if key not in values or values[key] is None},
        config=values if isinstance(row, Mapping) else row,  # a triton.Config may have a hook
    )
