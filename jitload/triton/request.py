"""The arguments of `load_triton` in, a `Request` out: what is to be built, and everything that decides it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from jitload.errors import SignatureError
from jitload.model import Cubin
from jitload.request.arguments import check_name
from jitload.request.request import Request
from jitload.settings import Settings, private_cache_dir, read_settings
from jitload.toolchain.arch import capability_of, resolve_gpu_arch
from jitload.triton.kernel import GivenKernel, Wanted, read_kernel
from jitload.triton.key import cubin_parts, grid_key, kernel_parts, plan_parts
from jitload.triton.plan import Plan
from jitload.triton.source import TritonSource, VariantSource
from jitload.triton.versions import find_triton
from jitload.triton.wanted import Asked, make_plan, read_wanted, refuse_for_compiled, refuse_other_archs

if TYPE_CHECKING:
    from jitload.triton.variants import Variants

_WHAT = "a Triton kernel is compiled"


def make_triton_request(name: str, kernel: Any, asked: Asked, *, arch: str | Sequence[str], grid: Any) -> Request:
    """Check the arguments of `load_triton` and return its request, with the settings of this moment."""
    settings = read_settings()
    check_name(name)
    if cubins := _finished_cubins(kernel, asked):
        if arch != "native":
            archs = resolve_gpu_arch(arch, settings, what=_WHAT)
            refuse_other_archs(cubins[0].kernels[0].name, [c.arch for c in cubins], archs)
        return _request_of_cubins(name, cubins, grid, settings)
    given = read_kernel(kernel)
    archs = resolve_gpu_arch(arch, settings, what=_WHAT)
    wanted = read_wanted(given, asked)
    plans = _plan_variants(given, wanted, asked.variants, capability_of(archs[0])[0])
    source, is_known = _source_of_plans(given, plans, grid, _integers(given, wanted))
    if not is_known:  # nobody shall find it again
        settings = replace(settings, cache_dir=str(private_cache_dir()))
    return _request(name, source, _distinct(archs), settings)


# ---- a kernel that is compiled ---------------------------------------------------------------------------------


def _finished_cubins(kernel: Any, asked: Asked) -> tuple[Cubin, ...]:
    """Return the machine code that was given instead of a kernel: of one architecture, or of several."""
    several = kernel if isinstance(kernel, list | tuple) else (kernel,)
    if several and all(isinstance(one, Cubin) for one in several):
        cubins = tuple(several)
    else:
        given = None if isinstance(kernel, list | tuple) else read_kernel(kernel)
        if given is None or given.compiled is None:
            return ()
        from jitload.triton.record import record_kernel

        cubins = (record_kernel(given.compiled, find_triton()),)
    refuse_for_compiled(cubins[0].kernels[0].name if cubins[0].kernels else "?", asked)
    archs = [cubin.arch for cubin in cubins]
    if twice := next((arch for arch in archs if archs.count(arch) > 1), None):
        raise SignatureError(f"two of the cubins are for {twice}: give one for each architecture")
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
    if variants is None:
        return ((given.name, make_plan(given, wanted, triton, capability)),)
    from jitload.triton.variants import read_variants, refuse_equal

    named = read_variants(given, wanted, variants)
    plans = tuple((name, make_plan(given, wish, triton, capability)) for name, wish in named)
    refuse_equal(given, plans)
    return plans


def _source_of_plans(
    given: GivenKernel, plans: Sequence[tuple[str, Plan]], grid: Any, examples: tuple[tuple[str, int], ...]
) -> tuple[TritonSource, bool]:
    """Return what is to be built, and whether its parts say all that decides it."""
    triton = find_triton()
    parts, is_known = kernel_parts(given, triton)
    texts = [(variant, *plan_parts(plan)) for variant, plan in plans]
    source = TritonSource(
        parts=(*parts, *((f"variant {variant}", text) for variant, text, _ in texts), ("grid", grid_key(grid))),
        name=given.name,
        kernel=given,
        variants=tuple(VariantSource(name=variant, plan=plan) for variant, plan in plans),
        grid=grid,
        examples=examples,
        triton=triton,
    )
    return source, is_known and all(is_complete for _, _, is_complete in texts)


def _integers(given: GivenKernel, wanted: Wanted) -> tuple[tuple[str, int], ...]:
    """Return the integers among the example arguments, by name."""
    names = [param.name for param in given.function.params]
    values = {**dict(zip(names, wanted.args, strict=False)), **wanted.named}
    return tuple((name, value) for name, value in values.items() if type(value) is int)


def _distinct(archs: tuple[str, ...]) -> tuple[str, ...]:
    """Leave out names of one architecture: Triton adds the suffix itself."""
    first: dict[int, str] = {}
    for arch in archs:
        first.setdefault(capability_of(arch)[0], arch)
    return tuple(first.values())


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
