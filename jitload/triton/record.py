"""A kernel that Triton compiled in, its `Cubin` with everything that a launch needs out.

What we derive from Triton's words is compared with the table of parameters in the machine code: where Triton's
interface has changed, that is an error at the build, and not a launch that corrupts memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from jitload.elf.cubin import read_image
from jitload.errors import SignatureError
from jitload.model import (
    Assumption,
    Cubin,
    Descriptor,
    ImageKernel,
    Kernel,
    Parameter,
    Scratch,
    Specialization,
)
from jitload.triton.facts import TypeFacts, flat_names, type_facts, without_layout
from jitload.triton.globals import plain_value
from jitload.triton.versions import Triton, read_version

_MOST_THREADS = 1024  # of a block
_MOST_TENSOR_MEMORY = 512  # columns; sm_107 has 576


def record_kernel(compiled: Any, triton: Triton, fixed: frozenset[str] | None = None) -> Cubin:
    """Return a compiled kernel as a cubin that knows how it is launched.

    Args:
        compiled: Triton's `CompiledKernel`.
        triton: The Triton that is installed.
        fixed: Names of the parameters that are no arguments of a call; None for those annotated as `tl.constexpr`.

    Raises:
        SignatureError: It is for another GPU than NVIDIA's, needs what a library cannot give, or its machine code takes
            other parameters than Triton says.
    """
    name = str(compiled.src.fn.__name__)
    facts = compiled.metadata
    _check_launchable(name, compiled)
    triton = read_version(getattr(facts, "triton_version", triton))
    image = read_image(compiled.asm["cubin"], name=f"Triton's cubin of {name!r}")
    code = next((kernel for kernel in image.kernels if kernel.symbol == facts.name), None)
    if code is None:
        known = ", ".join(kernel.symbol for kernel in image.kernels) or "none"
        raise SignatureError(f"kernel {name!r}: Triton calls it {facts.name!r}, and the cubin has: {known}")
    leaves = _Leaves(compiled, triton, fixed)
    parameters = _placed(name, leaves, code, triton, facts)
    kernel = Kernel(
        name=name,
        symbol=code.symbol,
        parameters=parameters,
        registers=code.registers,
        shared_bytes=code.shared_bytes,
        local_bytes=code.local_bytes,
        max_threads=code.max_threads,
    )
    launch = _launch_facts(compiled, triton)
    specialization = Specialization(
        kernel=kernel,
        arguments=tuple(leaves.arguments),
        assumptions=tuple(leaves.assumptions),
        descriptors=tuple(leaves.descriptors),
        constexprs=tuple(leaves.constexprs),
        **launch,
    )
    return Cubin(data=bytes(compiled.asm["cubin"]), arch=image.arch, kernels=(kernel,), triton=specialization)


def _check_launchable(name: str, compiled: Any) -> None:
    facts = compiled.metadata
    backend = facts.target.backend
    if backend != "cuda" or "cubin" not in compiled.asm:
        raise SignatureError(f"kernel {name!r} is compiled for {backend} {facts.target.arch}, and jitload is for CUDA")
    if size := getattr(facts, "profile_scratch_size", 0):
        raise SignatureError(
            f"kernel {name!r} is compiled with instrumentation for a profiler, which wants {size} bytes a program: "
            "unset TRITON_INSTRUMENTATION_MODE (or the profiler's hook), and compile it again"
        )
    threads = int(facts.num_warps) * _warp_size(facts)
    if threads > _MOST_THREADS:
        raise SignatureError(
            f"kernel {name!r} has num_warps={facts.num_warps} once it is compiled, {threads} threads, and a block has "
            f"at most {_MOST_THREADS}: compile it with fewer warps"
        )
    columns = getattr(facts, "tmem_size", 0) or 0
    if columns > _MOST_TENSOR_MEMORY + 64 * (facts.target.arch == 107):
        raise SignatureError(
            f"kernel {name!r} wants {columns} columns of tensor memory, and the GPU has 512: use smaller blocks"
        )


def _warp_size(facts: Any) -> int:
    return int(getattr(facts, "warp_size", facts.target.warp_size))


def _launch_facts(compiled: Any, triton: Triton) -> dict[str, Any]:
    """Return what a launch needs besides parameters, as it is after compilation: that may change the warps."""
    facts = compiled.metadata
    num_ctas = int(getattr(facts, "num_ctas", 1))
    cluster = tuple(map(int, getattr(facts, "cluster_dims", (num_ctas, 1, 1))))
    return {
        "num_warps": int(facts.num_warps),
        "warp_size": _warp_size(facts),
        "num_ctas": num_ctas,
        "cluster": cluster,
        "shared_bytes": int(facts.shared),
        "hidden_pointers": triton.hidden_pointers,
        "global_scratch": _scratch(facts, triton),
        "is_pdl": bool(getattr(facts, "launch_pdl", False)),
        "is_cooperative": bool(getattr(facts, "launch_cooperative_grid", False)),
        "grid_multiplies": triton.grid_multiplies,
        "triton_version": str(triton),
    }


def _scratch(facts: Any, triton: Triton) -> Scratch:
    size = int(getattr(facts, "global_scratch_size", 0) or 0)
    if not size:
        return Scratch()
    alignment = int(getattr(facts, "global_scratch_align", 1))
    return Scratch(size=size, alignment=alignment, is_per_cta=triton.scratch_is_per_cta)


# ---- what the source says --------------------------------------------------------------------------------------


class _Leaves:
    """The parameters of a compiled kernel as Triton states them: tuples flattened, descriptors unfolded."""

    def __init__(self, compiled: Any, triton: Triton, fixed: frozenset[str] | None) -> None:
        self.name = str(compiled.src.fn.__name__)
        self.triton = triton
        self.metas: list[Any] = list(getattr(compiled.metadata, "tensordesc_meta", None) or ())
        self.parameters: list[Parameter] = []
        self.arguments: list[Parameter] = []
        self.assumptions: list[Assumption] = []
        self.descriptors: list[Descriptor] = []
        self.constexprs: list[tuple[str, int | float | bool | str | None]] = []
        constants = _by_path(compiled.src)
        attributes = _attributes(compiled.src, triton)
        for param in compiled.src.fn.params:
            is_fixed = param.is_constexpr if fixed is None else param.name in fixed
            types = compiled.src.signature.get(param.name, "constexpr")
            for leaf, path, text in flat_names(param.name, types):
                place = (param.num, *path)
                if place in constants or text == "constexpr":
                    self._add_constant(leaf, constants.get(place), is_fixed=is_fixed and not path)
                else:
                    self._add_argument(leaf, text, attributes.get(place, ()))

    def _add_constant(self, name: str, value: Any, *, is_fixed: bool) -> None:
        value = plain_value(value)
        is_one = isinstance(value, int) and not isinstance(value, bool) and value == 1
        if is_fixed or not (value is None or is_one):
            self.constexprs.append((name, _plain(value)))
            return
        if value is None:
            self.arguments.append(Parameter(name=name, type="None", kind="pointer", size=8, offset=0))
            self.assumptions.append(Assumption(parameter=name, kind="null", value=0))
        else:
            self.arguments.append(Parameter(name=name, type="i32", kind="int", size=4, offset=0))
            self.assumptions.append(Assumption(parameter=name, kind="equal_to", value=1))

    def _add_argument(self, name: str, text: str, attributes: Sequence[tuple[str, Any]]) -> None:
        if text.startswith("tensordesc_im2col<"):
            raise SignatureError(
                f"kernel {self.name!r}, parameter {name!r}: an im2col descriptor, whose pixel boxes no tensor shows at "
                "a call; jitload encodes tiled descriptors alone. Give the kernel one, or launch it with Triton"
            )
        text = without_layout(text)
        facts = type_facts(text)
        if facts is None:
            raise SignatureError(
                f"kernel {self.name!r}, parameter {name!r}: Triton's type {text!r} is unknown to jitload"
            )
        argument = Parameter(name=name, type=text, kind=facts.kind, size=facts.size, offset=0, dtype=facts.dtype)
        if facts.block_shape is None:
            self.arguments.append(argument)
            self.parameters.append(argument)
        else:
            self.arguments.append(replace(argument, size=8))
            self._add_descriptor(name, text, facts)
        for what, value in attributes:
            if what != "tt.divisibility":
                raise SignatureError(
                    f"kernel {self.name!r}, parameter {name!r}: Triton specialised it by {what}={value!r}, which "
                    "jitload does not know, so that it could not check it at a call"
                )
            self.assumptions.append(Assumption(parameter=name, kind="multiple_of", value=int(value)))

    def _add_descriptor(self, name: str, text: str, facts: TypeFacts) -> None:
        shape = facts.block_shape or ()
        meta = self.metas[len(self.descriptors)] if self.metas else None
        base = Parameter(name=name, type=text, kind="struct" if meta else "pointer", size=128 if meta else 8, offset=0)
        self.descriptors.append(
            Descriptor(
                parameter=name,
                dtype=facts.dtype or "",
                block_shape=tuple(meta["block_size"]) if meta else shape,
                swizzle=int(meta["swizzle"]) if meta else 0,
                elem_size=int(meta["elem_size"]) if meta else 0,
                elem_type=int(meta["elem_type"]) if meta else 0,
                fp4_padded=bool(meta["fp4_padded"]) if meta else False,
                is_expanded=not meta,
                flags=0 if meta else self.triton.descriptor_flags,
            )
        )
        self.parameters.append(base)
        if not meta:
            self._add_numbers(f"{name}.long", 2 * len(shape), 8)
            self._add_numbers(f"{name}.flag", self.triton.descriptor_flags, 1)
        self._add_numbers(f"{name}.shape", len(shape), 4)
        self._add_numbers(f"{name}.stride", len(shape), 8)

    def _add_numbers(self, name: str, count: int, size: int) -> None:
        for number in range(count):
            kind, text = ("bool", "i1") if size == 1 else ("int", f"i{8 * size}")
            self.parameters.append(Parameter(name=f"{name}{number}", type=text, kind=kind, size=size, offset=0))  # type: ignore[arg-type]


def _plain(value: Any) -> int | float | bool | str | None:
    """Return a constant as a plain value: of an enum's member the number or text, of anything else its text."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int.__index__(value)
    if isinstance(value, float):
        return float.__float__(value)
    return str.__str__(value) if isinstance(value, str) else str(value)


def _by_path(source: Any) -> Mapping[tuple[int, ...], Any]:
    """Return the constants by path; Triton 3.2 has them by name."""
    names = list(source.fn.arg_names)
    return {
        (names.index(key),) if isinstance(key, str) else tuple(key): value for key, value in source.constants.items()
    }


def _attributes(source: Any, triton: Triton) -> Mapping[tuple[int, ...], Sequence[tuple[str, Any]]]:
    """Return what Triton assumes of arguments, by path."""
    if triton.has_paths:
        return {tuple(path): [(what, value) for what, value in found] for path, found in source.attrs.items()}
    found: dict[tuple[int, ...], list[tuple[str, Any]]] = {}
    for what, places in source.attrs.arg_properties.items():
        for place in places:
            found.setdefault((place,), []).append((what, source.attrs.property_values[what]))
    return found


# ---- what the machine code says --------------------------------------------------------------------------------


def _placed(name: str, leaves: _Leaves, code: ImageKernel, triton: Triton, facts: Any) -> tuple[Parameter, ...]:
    """Return the parameters where the cubin has them.

    Raises:
        SignatureError: It has others, or other threads.
    """
    sizes = [parameter.size for parameter in leaves.parameters] + [8] * triton.hidden_pointers
    found = [slot.size for slot in code.slots]
    if sizes != found:
        said = ", ".join(f"{p.name} {p.size}" for p in leaves.parameters) or "none"
        raise SignatureError(
            f"kernel {name!r}: Triton {triton} says that it takes {said} and {triton.hidden_pointers} hidden "
            f"pointers ({sum(sizes)} bytes), and the cubin has parameters of {', '.join(map(str, found)) or 'no'} "
            "bytes. This Triton passes parameters in another way than jitload knows."
        )
    threads = int(facts.num_warps) * _warp_size(facts)
    if threads != code.max_threads:
        raise SignatureError(
            f"kernel {name!r}: Triton {triton} says that it runs {threads} threads, and the cubin wants "
            f"{code.max_threads}"
        )
    return tuple(_at_slots(leaves.parameters, code))


def _at_slots(parameters: Sequence[Parameter], code: ImageKernel) -> Iterator[Parameter]:
    for parameter, slot in zip(parameters, code.slots, strict=False):
        yield replace(parameter, offset=slot.offset)
