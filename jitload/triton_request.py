"""The arguments of `load_triton` in, a `Request` out: what is to be built, and everything that decides it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from jitload.arch import capability_of, resolve_arch
from jitload.model import Cubin
from jitload.request import Request, check_name
from jitload.settings import Settings, private_cache_dir, read_settings
from jitload.triton_kernel import GivenKernel, read_kernel
from jitload.triton_key import cubin_parts, grid_key, kernel_parts, plan_parts
from jitload.triton_plan import Plan
from jitload.triton_source import TritonSource, VariantSource
from jitload.triton_variants import Variants, read_variants, refuse_equal
from jitload.triton_versions import find_triton
from jitload.triton_wanted import Wanted, make_plan, read_wanted, refuse_for_compiled


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The arguments of `load_triton` that say what to make, as given."""

    args: Sequence[Any]
    signature: Mapping[str, Any] | str | None
    constexprs: Mapping[str, Any] | None
    grid: Any
    variants: Variants | None
    arch: str | Sequence[str]
    config: Any
    options: Mapping[str, Any]


def make_triton_request(name: str, kernel: Any, asked: Asked) -> Request:
    """Check the arguments of `load_triton` and return its request, with the settings of this moment."""
    settings = read_settings()
    check_name(name)
    if cubins := _finished_cubins(kernel, asked):
        return _request_of_cubins(name, cubins, asked.grid, settings)
    given = read_kernel(kernel)
    archs = resolve_arch(asked.arch, settings)
    wanted = read_wanted(
        given,
        asked.args,
        signature=asked.signature,
        constexprs=asked.constexprs,
        config=asked.config,
        more=asked.options,
    )
    plans = _plan_variants(given, wanted, asked.variants, capability_of(archs[0])[0])
    return _request_of_plans(name, given, plans, asked, archs=_distinct(archs), settings=settings)


# ---- a kernel that is compiled ---------------------------------------------------------------------------------


def _finished_cubins(kernel: Any, asked: Asked) -> tuple[Cubin, ...]:
    """Return the machine code that was given instead of a kernel: of one architecture, or of several."""
    several = kernel if isinstance(kernel, list | tuple) else (kernel,)
    if several and all(isinstance(one, Cubin) for one in several):
        cubins, name = tuple(several), "?"
    else:
        given = None if isinstance(kernel, list | tuple) else read_kernel(kernel)
        if given is None or given.compiled is None:
            return ()
        from jitload.triton_record import record_kernel

        cubins, name = (record_kernel(given.compiled, find_triton()),), given.name
    fields = {"signature": asked.signature, "constexprs": asked.constexprs, "config": asked.config}
    name = cubins[0].kernels[0].name if cubins[0].kernels else name
    refuse_for_compiled(name, asked.args, {**fields, "variants": asked.variants, **asked.options})
    return cubins


def _request_of_cubins(name: str, cubins: tuple[Cubin, ...], grid: Any, settings: Settings) -> Request:
    parts = tuple((f"cubin{number}", cubin_parts(cubin)) for number, cubin in enumerate(cubins))
    kernel = cubins[0].kernels[0].name
    source = TritonSource(
        parts=(*parts, ("grid", grid_key(grid))),
        name=kernel,
        variants=(VariantSource(name=kernel, cubins=cubins),),
        grid=grid,
    )
    return _request(name, source, tuple(cubin.arch for cubin in cubins), settings)


# ---- a kernel to compile ---------------------------------------------------------------------------------------


def _plan_variants(
    given: GivenKernel, wanted: Wanted, variants: Variants | None, capability: int
) -> tuple[tuple[str, Plan], ...]:
    triton = find_triton()
    named = read_variants(given, wanted, variants)
    plans = tuple((name, make_plan(given, wish, triton, capability)) for name, wish in named)
    refuse_equal(given, plans)
    return plans


def _request_of_plans(  # noqa: PLR0913  the facts of one request
    name: str,
    given: GivenKernel,
    plans: Sequence[tuple[str, Plan]],
    asked: Asked,
    *,
    archs: tuple[str, ...],
    settings: Settings,
) -> Request:
    triton = find_triton()
    parts, is_known = kernel_parts(given, triton)
    texts = [(variant, plan_parts(plan)) for variant, plan in plans]
    if not (is_known and all(is_complete for _, (_, is_complete) in texts)):
        settings = replace(settings, cache_dir=str(Path(private_cache_dir())))  # nobody shall find it again
    source = TritonSource(
        parts=(
            *parts,
            *((f"variant {variant}", text) for variant, (text, _) in texts),
            ("grid", grid_key(asked.grid)),
        ),
        name=given.name,
        kernel=given,
        variants=tuple(VariantSource(name=variant, plan=plan) for variant, plan in plans),
        grid=asked.grid,
        examples=_integers(given, asked),
        triton=triton,
    )
    return _request(name, source, archs, settings)


def _integers(given: GivenKernel, asked: Asked) -> tuple[tuple[str, int], ...]:
    names = [param.name for param in given.function.params]
    values = {**dict(zip(names, asked.args, strict=False)), **asked.options}
    return tuple((name, value) for name, value in values.items() if type(value) is int and name in names)


def _distinct(archs: tuple[str, ...]) -> tuple[str, ...]:
    """Leave out names of one architecture: Triton adds the suffix itself."""
    return tuple({capability_of(arch)[0]: arch for arch in reversed(archs)}[number] for number in _numbers(archs))


def _numbers(archs: tuple[str, ...]) -> list[int]:
    return list(dict.fromkeys(capability_of(arch)[0] for arch in archs))


def _request(name: str, source: TritonSource, archs: tuple[str, ...], settings: Settings) -> Request:
    return Request(
        name=name,
        pieces=(),
        functions=None,
        archs=archs,
        options=(),
        include_dirs=(),
        settings=settings,
        triton=source,
    )
