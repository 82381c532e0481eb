"""Turns the arguments of `load_triton` into a request, and those of `extract_triton` into a cubin."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from jitload.cache.entry import private_cache_dir
from jitload.errors import LaunchSpecError, SignatureError
from jitload.request.arguments import check_name
from jitload.request.request import Request, TritonSource, VariantSource
from jitload.request.tune import Choice, Nearest, Tuned, Values, read_tuned
from jitload.settings import Settings, read_settings
from jitload.toolchain.arch import capability_of, resolve_gpu_arch, resolve_one_gpu_arch
from jitload.triton.grid import GridScope, read_grid
from jitload.triton.kernel import (
    CompileSpec,
    TritonKernel,
    assign_keywords,
    example_arguments,
    import_name,
    is_cubin,
    plain_value,
    read_kernel,
)
from jitload.triton.key import cubin_parts, kernel_parts, plan_parts
from jitload.triton.plan import Plan, make_plan, named_leaves, resolve_spec
from jitload.triton.versions import find_triton

if TYPE_CHECKING:
    from jitload.model import Cubin

_SUBJECT = "a Triton kernel is compiled"  # the subject of messages about architectures


def make_triton_request(  # noqa: PLR0913  the arguments of `load_triton`
    name: str,
    kernel: Any,
    spec: CompileSpec,
    *,
    arch: str | Sequence[str],
    grid: Any,
    tuned: Any = None,
    nearest: Nearest | None = None,
) -> Request:
    """Check the arguments of `load_triton`, and return the request for the library, with the current settings.

    If the settings ask for a record, record the call.
    """
    file = read_tuned(tuned)
    request = _make_request(name, kernel, spec, arch=arch, grid=grid, tuned=(file, nearest))
    if file and (request.triton is None or request.triton.choice is None):
        problem = f"tuned={file.label!r} chooses among variants, and there is only one: pass variants='all'"
        raise LaunchSpecError(problem, field="tuned")
    if request.settings.record:
        from jitload.request.recording import record_item

        target = {
            "name": name, "kernel": import_name(kernel), "arch": arch, "archs": request.archs,
            "grid": request.triton and request.triton.grid, "tuned": file and file._asdict(), "nearest": nearest,
        }  # fmt: skip

        def is_same(item: dict[str, Any]) -> bool:
            repeated = CompileSpec.of((), **{word: item[word] for word in item if word not in target})
            how = read_tuned(item["tuned"]), item["nearest"]
            again = _make_request(name, kernel, repeated, arch=item["archs"], grid=item["grid"], tuned=how)
            return bool(item["kernel"]) and again == request

        record_item(request.settings.record, {**target, **_portable_arguments(spec, request)}, is_same)
    return request


def _portable_arguments(spec: CompileSpec, request: Request) -> dict[str, Any]:
    """Return the arguments of `CompileSpec.of`, with types in place of example arguments."""
    source = request.triton
    if spec.signature is None and spec.variants is None and source is not None and source.kernel is not None:
        spec = assign_keywords(source.kernel, spec)
        spec = resolve_spec(source.kernel, spec, capability_of(request.archs[0])[0])
    constexprs, options = (
        {name: plain_value(value) for name, value in values.items()} for values in (spec.constexprs, spec.options)
    )
    own = {name: getattr(spec, name) for name in ("signature", "config", "variants")}
    return {**own, "constexprs": constexprs, **options}


def _make_request(  # noqa: PLR0913  the arguments of `make_triton_request`
    name: str,
    kernel: Any,
    spec: CompileSpec,
    *,
    arch: str | Sequence[str],
    grid: Any,
    tuned: tuple[Tuned | None, Nearest | None],
) -> Request:
    """Return a request. `tuned` is the file by which its function chooses among variants, and the rule for new keys."""
    settings = read_settings()
    check_name(name)
    cubins = tuple(kernel) if isinstance(kernel, list | tuple) else (kernel,)
    if cubins and all(map(is_cubin, cubins)):
        _check_unchanged(cubins[0].kernels[0].name if cubins[0].kernels else "?", spec)
        return _request_for_cubins(name, cubins, arch=arch, grid=grid, settings=settings)
    kernel = read_kernel(kernel)
    if kernel.compiled is not None:
        cubin = _read_compiled(kernel, spec)
        return _request_for_cubins(name, (cubin,), arch=arch, grid=grid, settings=settings)
    archs = resolve_gpu_arch(arch, settings, subject=_SUBJECT)
    spec = assign_keywords(kernel, spec)
    find_triton()  # or raise an error
    capability, _ = capability_of(archs[0])
    specs: list[tuple[str, CompileSpec, Values]] = [(kernel.name, spec, ())]
    if spec.variants is not None:
        from jitload.triton.variants import distinct_variants, specs_of_variants

        specs = specs_of_variants(kernel, spec)
    variants = [VariantSource(label, make_plan(kernel, s, capability), values=v) for label, s, v in specs]
    if len(variants) > 1:
        variants = distinct_variants(kernel, spec, variants)
    source, is_cacheable = _source_of_variants(kernel, spec, variants, grid=grid)
    if not is_cacheable:  # no other call may find the library
        settings = settings._replace(cache_dir=str(private_cache_dir()))
    by_capability: dict[int, str] = {}  # Triton chooses the suffix of an architecture itself
    for each in archs:
        by_capability.setdefault(capability_of(each)[0], each)
    request = Request(name, "triton", tuple(by_capability.values()), settings, triton=source)
    return _with_choice(request, *tuned) if len(variants) > 1 else request


def extract_cubin(kernel: Any, spec: CompileSpec, arch: str) -> Cubin:
    """Return the machine code of a kernel for one architecture. Compile the kernel unless it is compiled already."""
    find_triton()  # or raise an error
    kernel = read_kernel(kernel)
    if spec.variants is not None:
        raise SignatureError(
            f"kernel {kernel.name!r}: extract_triton() compiles one variant: pass its values, constexprs={{…}} or "
            "config=, and leave variants= to load_triton()"
        )
    if kernel.compiled is not None:
        cubin = _read_compiled(kernel, spec)
        _check_archs((cubin,), arch, read_settings(), subject="extract_triton() compiles")
        return cubin
    from jitload.triton.compile import compile_cubin

    spec = assign_keywords(kernel, spec)
    capability, _ = capability_of(resolve_one_gpu_arch(arch, read_settings(), function="extract_triton()"))
    return compile_cubin(kernel, make_plan(kernel, spec, capability), capability)


# ---- a kernel that is compiled already -------------------------------------------------------------------------


def _read_compiled(kernel: TritonKernel, spec: CompileSpec) -> Cubin:
    from jitload.triton.metadata import read_compiled_kernel

    _check_unchanged(kernel.name, spec)
    return read_compiled_kernel(kernel.compiled)


def _check_unchanged(name: str, spec: CompileSpec) -> None:
    """Raise SignatureError if `spec` contains arguments: the kernel is compiled already, so they have no effect."""
    keywords = {
        "signature": spec.signature,
        "constexprs": spec.constexprs or None,
        "config": spec.config,
        "variants": spec.variants,
        **spec.options,
    }
    late = next((f"{keyword}=" for keyword, value in keywords.items() if value is not None), "")
    if late or spec.args:
        late = late or "example arguments"
        raise SignatureError(f"kernel {name!r} is compiled already, so {late} cannot change it: leave it out")


def _check_archs(cubins: Sequence[Cubin], arch: str | Sequence[str], settings: Settings, *, subject: str) -> None:
    """Raise SignatureError if there is no cubin for one of the architectures in `arch`."""
    if arch == "native":
        return
    numbers = {capability_of(cubin.arch)[0] for cubin in cubins}
    archs = resolve_gpu_arch(arch, settings, subject=subject)
    if missing := [name for name in archs if capability_of(name)[0] not in numbers]:
        raise SignatureError(
            f"kernel {cubins[0].kernels[0].name!r} is compiled for {', '.join(cubin.arch for cubin in cubins)}, so "
            f"arch= cannot make it run on {missing[0]}: leave it out, or pass the @triton.jit function"
        )


def _request_for_cubins(
    name: str, cubins: tuple[Cubin, ...], *, arch: str | Sequence[str], grid: Any, settings: Settings
) -> Request:
    archs = tuple(cubin.arch for cubin in cubins)
    if repeated := next((arch for arch in archs if archs.count(arch) > 1), None):
        raise SignatureError(f"two of the cubins are for {repeated}: pass one for each architecture")
    parts = tuple((f"cubin{number}", cubin_parts(cubin)) for number, cubin in enumerate(cubins))
    _check_archs(cubins, arch, settings, subject=_SUBJECT)
    kernel, triton = cubins[0].kernels[0].name, cubins[0].triton
    assert triton is not None  # `cubin_parts` has looked
    arguments = tuple(argument.name for argument in triton.arguments)
    grid = read_grid(grid, GridScope(kernel, arguments, tuple(name for name, _ in triton.constexprs), {}))
    source = TritonSource(
        parts=(*parts, ("grid", repr(grid))),
        name=kernel,
        variants=(VariantSource(name=kernel, cubins=cubins),),
        grid=grid,
    )
    return Request(name, "triton", archs, settings, triton=source)


# ---- a kernel to compile ---------------------------------------------------------------------------------------


def _source_of_variants(
    kernel: TritonKernel, spec: CompileSpec, variants: Sequence[VariantSource], *, grid: Any
) -> tuple[TritonSource, bool]:
    """Return a library's source, and whether its cache key is complete. An incomplete key prevents caching."""
    parts, is_complete = kernel_parts(kernel)
    texts = [(variant.name, *plan_parts(variant.plan)) for variant in variants]
    plan: Plan = variants[0].plan
    leaves = (named_leaves(name, tree, ()) for name, tree in plan.types if name not in plan.constexprs)
    arguments = tuple(name for name, _, _ in itertools.chain.from_iterable(leaves))
    scope = GridScope(kernel.name, arguments, tuple(plan.constexprs), example_arguments(kernel, spec))
    grid = read_grid(grid, scope)
    source = TritonSource(
        parts=(*parts, *((f"variant {label}", text) for label, text, _ in texts), ("grid", repr(grid))),
        name=kernel.name,
        variants=tuple(variants),
        grid=grid,
        kernel=kernel,
        doc=inspect.cleandoc(kernel.function.__doc__ or ""),
    )
    return source, is_complete and all(is_plan_complete for _, _, is_plan_complete in texts)


# ---- choices by key ------------------------------------------------------------------------------------------------


def _with_choice(request: Request, file: Tuned | None, nearest: Nearest | None) -> Request:
    """Return a request whose function chooses by the integers in Triton's own key, and by measurements in a file."""
    source = request.triton
    assert source is not None
    if not (source.kernel.configs or file or nearest):
        return request
    types = dict(source.variants[0].plan.types)
    choice = Choice(tuple(n for n in source.kernel.keys if str(types.get(n, "")).startswith(("i", "u"))), nearest)
    if file is not None:
        from jitload.request.rows import Row, with_choices
        from jitload.request.variants import source_digest

        digest = source_digest(request, source.name, None)
        like = Row(function=source.name, gpu="", values=(), number=0, source=digest)
        choice = with_choices(choice, file, like, [variant.values for variant in source.variants])
    source = source._replace(choice=choice, parts=(*source.parts, ("choice", repr(choice))))
    return request._replace(triton=source, tuned=file)
