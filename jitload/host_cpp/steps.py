"""The source files of hand-written C++ as the compiler reads them, and the commands that compile and link them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from jitload.building import ninja
from jitload.building.ninja import Step, compile_step, join_step
from jitload.building.runtime import wrapper_step
from jitload.cache.store import Work
from jitload.cpptext.lexer import strip_comments
from jitload.host_cpp.dryrun import Template, find_template, module_id, module_id_file
from jitload.host_cpp.embedding import assembler_text
from jitload.host_cpp.functions import CALL_HEADER, HostExport, needs_prelude
from jitload.host_cpp.link import driver_calls_text
from jitload.host_cpp.nvcc import device_link_step, nvcc_options, nvcc_steps, write_host_compiler
from jitload.host_cpp.precompiled import PRELUDE, PrecompiledHeader
from jitload.host_cpp.torch_headers import find_or_write_torch_headers
from jitload.request.request import HostSource, Request, Unit
from jitload.request.torch_text import string_literal
from jitload.toolchain.cuda import CudaToolchain, Nvcc
from jitload.toolchain.host import INCLUDE_DIR, Compiler, tvm_ffi_include_dirs

STANDARD = "-std=c++17"
FLAGS = ("-O2", "-pipe", "-fPIC", "-fvisibility=hidden", "-DJITLOAD_LAUNCHER_LINKED")

_CUDA_RUNTIME_NAME = re.compile(r"\bcuda[A-Z]\w+")
# These lines follow the user's text. If the text lacks a closing brace, the compiler reports an error in these lines
# instead of in the next header.
_END_OF_SOURCE = '#line 1 "the end of the source"\ntemplate <class> struct __jitload_end_of_source;\n'
_PRELUDE = "".join(f"#include <{name}>\n" for name in PRELUDE)
# The expansion of tvm-ffi's macro for docstrings. The macro itself cannot be used, because it only works if all
# functions have metadata.
_DOC = """\
extern "C" TVM_FFI_DLL_EXPORT int __tvm_ffi__doc_{name}(void*, const TVMFFIAny*, int32_t, TVMFFIAny* result) {{
  TVMFFIByteArray text{{{text}, {size}}};
  return TVMFFIStringFromByteArray(&text, result);
}}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostBuild:
    """A build of hand-written C++.

    Attributes:
        request: What to build.
        host: The request's C++ and all cubins to embed. A unit is one source file of the C++.
        cuda: The compiler of device code and the CUDA headers, or None if the build needs neither.
        compiler: The host compiler.
        work: The directory to build in.
        library_dirs: The header directories of CUDA's libraries, which are searched last.
        link_flags: Options for the link, in addition to those of every library.
        precompiled: The precompiled header of each unit that has one, by the unit's file name.
        launcher: The launcher's object file, if it is needed.
        calls_driver: Whether to compile and link `driver_calls.c`.
        templates: The commands that nvcc would run for a unit, by the unit's file name. Units with unknown commands are
            left out.
        exports: The functions that `functions=` names.
        runtime: The runtime library's object file, if there is a wrapper (`wrapper.cc`) for functions of plain types.
    """

    request: Request
    host: HostSource
    cuda: CudaToolchain | Nvcc | None
    compiler: Compiler
    work: Work
    library_dirs: tuple[Path, ...] = ()
    link_flags: tuple[str, ...] = ()
    precompiled: Mapping[str, PrecompiledHeader] = field(default_factory=dict)
    launcher: Path | None = None
    calls_driver: bool = False
    templates: Mapping[str, Template] = field(default_factory=dict)
    exports: tuple[HostExport, ...] = ()
    runtime: Path | None = None

    @property
    def product(self) -> Path:
        """The path of the library, object file or program."""
        return self.work.dir / self.request.product

    @property
    def unit_objects(self) -> list[Path]:
        """The object files of the units."""
        return [self.work.dir / f"{unit.file}.o" for unit in self.host.units]

    @property
    def user_flags(self) -> list[str]:
        """The user's options for all units, in one list."""
        return [flag for unit in self.host.units for flag in (*unit.flags, *self.host.flags)]


# ---- source files ------------------------------------------------------------------------------------------------


def write_host_sources(build: HostBuild) -> None:
    """Write the C++, the cubins, and the assembler text that embeds the cubins."""
    host, directory = build.host, build.work.dir
    for unit in host.units:
        exports = tuple(export for export in build.exports if export.unit == unit.file)
        text = _cuda_includes(unit) + _unit_text(unit, exports, build.request)
        (directory / unit.file).write_text(text, encoding="utf-8", newline="")
        if unit.is_mixed:
            parts = (build.request.name, text, *unit.flags, *build.request.archs)
            (directory / module_id_file(unit.file)).write_text(module_id(unit.file, parts))
    for name, data in host.cubins:
        (directory / f"{name}.cubin").write_bytes(data)
    if host.cubins:
        (directory / "cubins.s").write_text(assembler_text([name for name, _ in host.cubins]), encoding="utf-8")
    if host.is_mixed:
        write_host_compiler(build.compiler, directory)


def _unit_text(unit: Unit, exports: Sequence[HostExport], request: Request) -> str:
    """Return the text of a source file for the compiler: the user's texts with `#line` directives, and the exports."""
    parts = [_PRELUDE] if needs_prelude(unit, exports) else []
    for label, text in unit.pieces:
        # If a text ends with a backslash, the compiler joins the next line to it, so an empty line follows.
        parts.append(f"#line 1 {string_literal(label)}\n{text}\n\n")
    if exports:
        parts.append(_END_OF_SOURCE)
    if any(export.needs_call_header for export in exports):
        parts.append(f'#define __JITLOAD_ARCHS "{", ".join(request.archs)}"\n{CALL_HEADER}')
    if unit.is_file and not all(export.is_typed for export in exports):
        parts.append("#include <tvm/ffi/function.h>\n")
    for export in exports:
        name, doc = export.name, export.launch.doc
        label = string_literal(f"functions['{name}']")
        parts.append(f"#line 1 {label}\n{export.text}")
        if doc and not export.is_typed:
            parts.append(_DOC.format(name=name, text=string_literal(doc), size=len(doc.encode())))
    return "".join(parts)


def _cuda_includes(unit: Unit) -> str:
    """Return an `#include` of `cuda_runtime.h`, or "" if the source does not need it.

    C++ from CUDA sources may call the CUDA runtime without an `#include`, because nvcc includes the header by itself.
    """
    texts = [text for label, text in unit.pieces if label.startswith("cuda_sources") or label.endswith((".cu", ".cuh"))]
    if unit.is_mixed or not any(_CUDA_RUNTIME_NAME.search(strip_comments(text)) for text in texts):
        return ""
    return "#include <cuda_runtime.h>\n"


def with_driver_calls(build: HostBuild, functions: Sequence[str]) -> HostBuild:
    """Write a C file that defines functions of the driver, and return the build with this file."""
    (build.work.dir / "driver_calls.c").write_text(driver_calls_text(functions), encoding="utf-8")
    return replace(build, calls_driver=True)


# ---- commands ----------------------------------------------------------------------------------------------------


def compile_steps(build: HostBuild) -> tuple[Step, ...]:
    """Return the commands that make the object files of the sources, cubins, wrapper and driver functions."""
    command, host = build.compiler.command, build.host
    steps = [_unit_step(build, unit) for unit in host.units if not _is_for_nvcc(build, unit)]
    steps += nvcc_compile_steps(build)
    if host.cubins:
        reads = tuple(f"{name}.cubin" for name, _ in host.cubins)
        steps.append(compile_step(command, (), "cubins.s", "cubins.o", reads=reads))
    if build.runtime:
        steps.append(wrapper_step(build.compiler))
    if build.calls_driver:
        steps.append(compile_step(command, ("-x", "c", *FLAGS), "driver_calls.c", "driver_calls.c.o"))
    return tuple(steps)


def nvcc_compile_steps(build: HostBuild) -> list[Step]:
    """Return nvcc's commands. They compile the sources with kernels and link relocatable device code."""
    nvcc, units = build.cuda, [unit for unit in build.host.units if _is_for_nvcc(build, unit)]
    if not isinstance(nvcc, Nvcc):
        return []
    steps: list[Step] = []
    for unit in units:
        header = build.precompiled.get(unit.file)
        options, template = _nvcc_options(build, nvcc, unit), build.templates.get(unit.file)
        steps += nvcc_steps(nvcc, options, unit, template, header.path if header else None)
    if relocatable := [unit for unit in units if unit.is_relocatable]:
        steps.append(device_link_step(nvcc, build.compiler, relocatable, build.request.archs))
    return steps


def _is_for_nvcc(build: HostBuild, unit: Unit) -> bool:
    return unit.is_mixed and isinstance(build.cuda, Nvcc)


def _unit_step(build: HostBuild, unit: Unit) -> Step:
    header = build.precompiled.get(unit.file)
    flags = (
        *(("-include", str(header.path)) if header else ()),
        *(("-x", "c") if unit.file.endswith(".c") else (STANDARD,)),
        *FLAGS,
        *unit.flags,
        *build.host.flags,
        *_torch_flags(build),
        *include_flags(build.cuda.include_dirs if build.cuda else (), build.request.include_dirs),
        *(f"-idirafter{path}" for path in build.library_dirs),
        *("-MD", "-MF", f"{unit.file}.d"),
    )
    return compile_step(build.compiler.command, flags, unit.file, f"{unit.file}.o")


def _nvcc_options(build: HostBuild, nvcc: Nvcc, unit: Unit) -> tuple[str, ...]:
    dirs = include_flags((), build.request.include_dirs)  # nvcc finds CUDA's headers by itself
    last = (f"-Xcompiler=-idirafter{path}" for path in build.library_dirs if "," not in str(path))
    return nvcc_options(nvcc, build.compiler, unit, build.request.archs, (*_torch_flags(build), *dirs, *last))


def _torch_flags(build: HostBuild) -> tuple[str, ...]:
    return (f"-I{find_or_write_torch_headers(build.work.cache_dir)}",) if build.host.is_torch else ()


def with_templates(build: HostBuild, nvcc: Nvcc) -> HostBuild:
    """Return the build with the commands that nvcc would run for each source.

    A source is left out if nvcc's output is not understood.
    """
    templates = {}
    for unit in build.host.units:
        options = _nvcc_options(build, nvcc, unit) if unit.is_mixed else ()
        if options and (template := find_template(nvcc, build.compiler, options, build.work.dir, build.work.cache_dir)):
            templates[unit.file] = template
    return replace(build, templates=templates)


def include_flags(cuda_dirs: Sequence[Path], user_dirs: Sequence[str]) -> tuple[str, ...]:
    """Return the options for the include directories, in the order of the search.

    Headers of jitload hide those of tvm-ffi, and the user's headers hide those of tvm-ffi and CUDA.
    """
    return (
        *(f"-I{path}" for path in (INCLUDE_DIR / "upstream", INCLUDE_DIR, *user_dirs)),
        *(word for path in (*tvm_ffi_include_dirs(), *cuda_dirs) for word in ("-isystem", str(path))),
    )


def link_step(build: HostBuild, options: Sequence[str] = ()) -> Step:
    """Return the command that links the objects into the library."""
    all_options = (*build.link_flags, *options)
    return ninja.link_step(build.compiler.command, _objects(build), build.request.product, all_options)


def merge_step(build: HostBuild) -> Step:
    """Return the command that merges the objects into one. A single object is copied as the compiler wrote it."""
    objects, product = _objects(build), build.request.product
    if len(objects) == 1:
        return Step(output=product, command=("cp", objects[0], product), inputs=objects)
    return join_step(build.compiler.command, objects, product)


def _objects(build: HostBuild) -> tuple[str, ...]:
    own = (str(path) for path in (build.launcher, build.runtime) if path)
    return (*(path.name for path in object_paths(build)), *own, *build.host.objects)


def object_paths(build: HostBuild) -> list[Path]:
    """Return the paths of the object files that `compile_steps` makes."""
    return [build.work.dir / step.output for step in compile_steps(build) if step.output.endswith(".o")]
