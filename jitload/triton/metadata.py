"""Reads a kernel that Triton compiled, and checks what its metadata says against the parameter table in the cubin.

Because of this check, a change in how Triton passes parameters causes an error at the build, rather than a launch that
corrupts memory.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from jitload.element_types import ELEMENT_TYPES
from jitload.elf.cubin import read_cubin
from jitload.errors import SignatureError
from jitload.model import TENSOR_MAP_BYTES, Assumption, Cubin, Descriptor, Kernel, Parameter, Specialization
from jitload.triton.kernel import plain_value
from jitload.triton.plan import DESCRIPTOR, ELEMENTS, POINTER, SCALARS, Path, named_leaves
from jitload.triton.versions import KNOWN_RELEASES, descriptor_flags, find_triton, read_version

_MAX_THREADS = 1024  # per block
_HIDDEN_POINTERS = 2  # they follow a kernel's own parameters: to global scratch and to profile scratch
_MAX_TENSOR_MEMORY = 512  # columns on all architectures except sm_107, which has 576


def read_compiled_kernel(compiled: Any, constexprs: frozenset[str] | None = None) -> Cubin:
    """Return Triton's `CompiledKernel` as a `Cubin`. The attribute `Cubin.triton` says how the kernel is launched.

    `constexprs` names the parameters that a call does not pass. None stands for those that are annotated
    `tl.constexpr`.
    """
    name = str(compiled.src.fn.__name__)
    metadata = compiled.metadata
    _check_launchable(name, compiled)
    version = str(getattr(metadata, "triton_version", "") or find_triton())
    read_version(version)
    cubin = read_cubin(compiled.asm["cubin"], name=f"Triton's cubin of {name!r}")
    entry = next((kernel for kernel in cubin.kernels if kernel.symbol == metadata.name), None)
    if entry is None:
        symbols = ", ".join(kernel.symbol for kernel in cubin.kernels) or "none"
        raise SignatureError(
            f"kernel {name!r}: Triton names it {metadata.name!r}, but the cubin contains only: {symbols}"
        )
    interface = _Interface(compiled, version, constexprs)
    _check_parameters(interface, entry, _block_size(metadata))
    pairs = zip(interface.parameters, entry.parameters, strict=False)  # the cubin also has hidden pointers
    kernel = entry._replace(name=name, parameters=tuple(p._replace(offset=slot.offset) for p, slot in pairs))
    specialization = Specialization(
        kernel=kernel,
        arguments=tuple(interface.arguments),
        assumptions=tuple(interface.assumptions),
        descriptors=tuple(interface.descriptors),
        constexprs=tuple(interface.constexprs),
        tuples=tuple(interface.tuples),
        triton_version=version,
        **_launch_attributes(metadata),
    )
    ptx = compiled.asm.get("ptx", "")
    return replace(cubin, kernels=(kernel,), variables=(), triton=specialization, ptx=ptx)


def _check_launchable(name: str, compiled: Any) -> None:
    metadata = compiled.metadata
    backend, arch = metadata.target.backend, metadata.target.arch
    if backend != "cuda" or "cubin" not in compiled.asm:
        raise SignatureError(f"kernel {name!r} is compiled for {backend} {arch}, but jitload is for CUDA")
    if size := getattr(metadata, "profile_scratch_size", 0):
        raise SignatureError(
            f"kernel {name!r} is compiled with instrumentation for a profiler, which needs {size} bytes per program: "
            "unset TRITON_INSTRUMENTATION_MODE (or the profiler's hook), and compile it again"
        )
    threads = _block_size(metadata)
    if threads > _MAX_THREADS:
        raise SignatureError(
            f"kernel {name!r} has num_warps={metadata.num_warps} after compilation, which is {threads} threads, but a "
            f"block has at most {_MAX_THREADS}: compile it with fewer warps"
        )
    columns = getattr(metadata, "tmem_size", 0) or 0
    max_columns = 576 if arch == 107 else _MAX_TENSOR_MEMORY
    if columns > max_columns:
        raise SignatureError(
            f"kernel {name!r} needs {columns} columns of tensor memory, but the GPU has {max_columns}: use smaller "
            "blocks"
        )


def _block_size(metadata: Any) -> int:
    return int(metadata.num_warps) * _warp_size(metadata)


def _warp_size(metadata: Any) -> int:
    return int(getattr(metadata, "warp_size", metadata.target.warp_size))


def _check_parameters(interface: _Interface, entry: Kernel, threads: int) -> None:
    """Raise SignatureError if the cubin's parameter sizes or thread count differ from those in Triton's metadata."""
    sizes = [parameter.size for parameter in interface.parameters] + [8] * _HIDDEN_POINTERS
    cubin_sizes = [slot.size for slot in entry.parameters]
    claim = f"kernel {interface.name!r}: Triton {interface.version} says that it"
    if sizes != cubin_sizes:
        parameters = ", ".join(f"{p.name} {p.size}" for p in interface.parameters) or "no parameters"
        raise SignatureError(
            f"{claim} takes {parameters} and {_HIDDEN_POINTERS} hidden pointers ({sum(sizes)} bytes), but the "
            f"cubin has parameters of {', '.join(map(str, cubin_sizes)) or 'no'} bytes. {KNOWN_RELEASES}"
        )
    if threads != entry.max_threads:
        raise SignatureError(
            f"{claim} has {threads} threads per block, but the cubin is for {entry.max_threads}. {KNOWN_RELEASES}"
        )


def _launch_attributes(metadata: Any) -> dict[str, Any]:
    """Return the fields of `Specialization` that a launch needs besides the parameters.

    The fields are read after compilation, because the compiler may change `num_warps`.
    """
    num_ctas = int(getattr(metadata, "num_ctas", 1))
    return {
        "num_warps": int(metadata.num_warps),
        "warp_size": _warp_size(metadata),
        "num_ctas": num_ctas,
        "cluster": tuple(map(int, getattr(metadata, "cluster_dims", (num_ctas, 1, 1)))),
        "shared_bytes": int(metadata.shared),
        "hidden_pointers": _HIDDEN_POINTERS,
        "scratch_bytes": int(getattr(metadata, "global_scratch_size", 0) or 0),
        "scratch_alignment": int(getattr(metadata, "global_scratch_align", 1) or 1),
        "is_pdl": bool(getattr(metadata, "launch_pdl", False)),
        "is_cooperative": bool(getattr(metadata, "launch_cooperative_grid", False)),
    }


# ---- arguments and parameters ----------------------------------------------------------------------------------


class _Interface:
    """The arguments of a call and the parameters of the machine code, read from Triton's `CompiledKernel`.

    Tuples are flattened. A tensor descriptor is one argument, but several parameters.
    """

    def __init__(self, compiled: Any, version: str, constexprs: frozenset[str] | None) -> None:
        source = compiled.src
        self.name = str(source.fn.__name__)
        self.version = version
        self.descriptor_metadata: list[Any] = list(getattr(compiled.metadata, "tensordesc_meta", None) or ())
        self.parameters: list[Parameter] = []
        self.arguments: list[Parameter] = []
        self.assumptions: list[Assumption] = []
        self.descriptors: list[Descriptor] = []
        self.constexprs: list[tuple[str, int | float | bool | str | None]] = []
        self.tuples: list[tuple[str, tuple[str, ...]]] = []
        # By path: a parameter's index, then indexes in tuples.
        constants: dict[Path, Any] = {tuple(path): value for path, value in source.constants.items()}
        attributes: dict[Path, Any] = {tuple(path): pairs for path, pairs in source.attrs.items()}
        for param in source.fn.params:
            is_constexpr = param.is_constexpr if constexprs is None else param.name in constexprs
            types = source.signature.get(param.name, "constexpr")
            leaves = tuple(named_leaves(param.name, types, (param.num,)))
            if isinstance(types, tuple):
                self.tuples.append((param.name, tuple(name for name, _, _ in leaves)))
            for name, path, text in leaves:
                if path in constants or text == "constexpr":
                    self._add_constant(name, constants.get(path), is_constexpr=is_constexpr and len(path) == 1)
                else:
                    self._add_argument(name, text, attributes.get(path, ()))

    def _add_constant(self, name: str, value: Any, *, is_constexpr: bool) -> None:
        """Add a constexpr, or an argument that the machine code does not take because its value is always None or 1."""
        value = plain_value(value)
        is_one = isinstance(value, int) and not isinstance(value, bool) and value == 1
        if is_constexpr or not (value is None or is_one):
            self.constexprs.append((name, _constexpr_value(value)))
        elif value is None:
            self.arguments.append(Parameter(name=name, type="None", kind="pointer", size=8, offset=0))
            self.assumptions.append(Assumption(parameter=name, kind="null", value=0))
        else:
            self.arguments.append(Parameter(name=name, type="i32", kind="int", size=4, offset=0))
            self.assumptions.append(Assumption(parameter=name, kind="equal_to", value=1))

    def _add_argument(self, name: str, text: str, attributes: Sequence[tuple[str, Any]]) -> None:
        where = f"kernel {self.name!r}, parameter {name!r}"
        if text.startswith("tensordesc_im2col<"):
            raise SignatureError(
                f"{where}: jitload does not support im2col descriptors, because their pixel boxes cannot be read from "
                "a tensor at a call. Pass the kernel a tiled descriptor, or launch it with Triton"
            )
        # Gluon adds a layout of shared memory to the type of a descriptor.
        text = re.sub(r"(?s)(tensordesc<\w+\[[\d\s,]+\]),.*>", r"\1>", text)
        descriptor = re.fullmatch(DESCRIPTOR, text)
        described = Parameter(name, text, "pointer", 8, 0, ELEMENTS.get(descriptor[1])) if descriptor else None
        argument = described or _read_parameter(name, text)
        if argument is None:
            raise SignatureError(f"{where}: jitload does not support Triton's type {text!r}")
        self.arguments.append(argument)
        if descriptor:
            self._add_descriptor(argument, tuple(int(n) for n in descriptor[2].split(",") if n.strip()))
        else:
            self.parameters.append(argument)
        for attribute, value in attributes:
            if attribute != "tt.divisibility":
                raise SignatureError(
                    f"{where}: Triton specialized it by {attribute}={value!r}, which jitload cannot check at a call. "
                    f"{KNOWN_RELEASES}"
                )
            self.assumptions.append(Assumption(parameter=name, kind="multiple_of", value=int(value)))

    def _add_descriptor(self, argument: Parameter, block_shape: tuple[int, ...]) -> None:
        descriptor = Descriptor(parameter=argument.name, dtype=argument.dtype or "", block_shape=block_shape)
        if self.descriptor_metadata:
            metadata = self.descriptor_metadata[len(self.descriptors)]
            descriptor = descriptor._replace(
                block_shape=tuple(metadata["block_size"]),
                swizzle=int(metadata["swizzle"]),
                elem_size=int(metadata["elem_size"]),
                elem_type=int(metadata["elem_type"]),
                fp4_padded=bool(metadata["fp4_padded"]),
            )
            self.parameters.append(argument._replace(kind="struct", size=TENSOR_MAP_BYTES, dtype=None))
        else:  # before sm_90, a descriptor is passed as plain parameters
            descriptor = descriptor._replace(is_expanded=True, flags=descriptor_flags(self.version))
            self.parameters.append(argument._replace(dtype=None))
        self.descriptors.append(descriptor)
        for part, axis, type_ in descriptor.parts[1:]:
            kind, size, _ = SCALARS[type_]
            self.parameters.append(Parameter(f"{argument.name}.{part}{axis}", type_, kind, size, 0))


def _constexpr_value(value: Any) -> int | float | bool | str | None:
    """Return a constant as None, a bool, a number or a str. An object of any other type is converted to str."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int.__index__(value)
    if isinstance(value, float):
        return float.__float__(value)
    return str.__str__(value) if isinstance(value, str) else str(value)


def _read_parameter(name: str, text: str) -> Parameter | None:
    """Return the parameter with a type in Triton's spelling, or None if the type is unknown."""
    pointer = re.fullmatch(POINTER, text)
    if pointer and pointer["stars"]:
        if pointer["element"] not in ELEMENTS:
            return None
        dtype = ELEMENTS[pointer["element"]] if pointer["stars"] == "*" else None
        return Parameter(name, text, "pointer", 8, 0, dtype, ELEMENT_TYPES[dtype].size if dtype else 8)
    if text in SCALARS:
        kind, size, dtype = SCALARS[text]
        return Parameter(name, text, kind, size, 0, dtype)
    return Parameter(name, text, "struct", TENSOR_MAP_BYTES, 0) if text == "nvTmaDesc" else None
