"""`variants=` in, the specialisations of one kernel with their names out."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from jitload.errors import SignatureError
from jitload.signature.exports import make_unique_name
from jitload.triton.kernel import GivenKernel, Wanted, config_values, show_values
from jitload.triton.plan import Plan

Variants = Sequence[Any] | str


def read_variants(given: GivenKernel, wanted: Wanted, variants: Variants) -> tuple[tuple[str, Wanted], ...]:
    """Return the names and wishes of the variants.

    Raises:
        SignatureError: They are malformed, or `"all"` of a kernel that is not autotuned.
    """
    rows = _rows(given, variants)
    parameters = {param.name for param in given.function.params}
    named = [_flat(config_values(row)) for row in rows]
    varying = {key for row in named for key in row if len({repr(other.get(key)) for other in named}) > 1}
    found: list[tuple[str, Wanted]] = []
    for number, (row, flat) in enumerate(zip(rows, named, strict=True)):
        words = [f"{key}_{_word(value)}" for key, value in flat.items() if key in parameters or key in varying]
        words = words or [f"variant_{number}"]  # the kernel's own name is the dispatcher's
        name = make_unique_name("__".join((given.name, *words)), [other for other, _ in found])
        found.append((name, _with_row(given, wanted, row)))
    return tuple(found)


def _rows(given: GivenKernel, variants: Variants) -> list[Any]:
    if isinstance(variants, str):
        if variants != "all":
            raise SignatureError(f"variants= must be a list of mappings, or 'all', got {variants!r}")
        if not given.configs:
            raise SignatureError(
                f"kernel {given.name!r}: variants='all' is for autotuned kernels, and this one has no configurations: "
                "list them, variants=[{'BLOCK': 512}, …]"
            )
        return list(given.configs)
    if isinstance(variants, Mapping) or not isinstance(variants, Sequence):
        raise SignatureError(f"variants= must be a list of mappings, or 'all', got {type(variants).__name__}")
    if not variants:
        raise SignatureError("variants= is empty; leave it out for a single one")
    for number, row in enumerate(variants):
        if not isinstance(row, Mapping) and not hasattr(row, "kwargs"):
            raise SignatureError(
                f"kernel {given.name!r}: variants[{number}] must be a mapping, {{'BLOCK': 512}}, or a triton.Config, "
                f"got {type(row).__name__}"
            )
    return list(variants)


def _flat(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a variant's values with those of its signature beside the others."""
    signature = row.get("signature", {})
    types = signature if isinstance(signature, Mapping) else {"signature": signature}
    return {**{key: value for key, value in row.items() if key != "signature"}, **types}


def _word(value: Any) -> str:
    """Return a value as part of a name: `512`, `0_5`, `m1`, `fp32_16`."""
    text = re.sub(r"^-", "m", str(value))
    return re.sub(r"[^A-Za-z0-9]+", "_", text).strip("_")


def _with_row(given: GivenKernel, wanted: Wanted, config: Any) -> Wanted:
    """Return the wish with a variant's values, which win over those for all."""
    signature, row = wanted.signature, config_values(config)
    if "signature" in row:
        if not isinstance(signature, Mapping) or not isinstance(row["signature"], Mapping):
            raise SignatureError(
                f"kernel {given.name!r}: a variant's 'signature' maps some parameters to other types than "
                "signature= does, so that needs to be a mapping, too"
            )
        signature = {**signature, **row["signature"]}
    values = {key: value for key, value in row.items() if key != "signature"}
    return Wanted(
        args=wanted.args,
        named=wanted.named,
        signature=signature,
        constexprs={key: value for key, value in wanted.constexprs.items() if key not in values},
        options={key: value for key, value in wanted.options.items() if key not in values or values[key] is None},
        config=values if isinstance(config, Mapping) else config,  # which may have a hook
    )


def refuse_equal(given: GivenKernel, variants: Sequence[tuple[str, Plan]]) -> None:
    """Refuse two variants that would be the same machine code.

    Raises:
        SignatureError: There are such.
    """
    for number, (name, plan) in enumerate(variants):
        for earlier, other in enumerate(variants[:number]):
            if plan.is_like(other[1]):
                constants = {given.function.params[path[0]].name: value for path, value in plan.constants.items()}
                raise SignatureError(
                    f"kernel {given.name!r}: variants[{earlier}] and variants[{number}] are the same "
                    f"({show_values({**constants, **plan.options})}), so that {name!r} would never run: leave one out"
                )
