"""Refuses conditions of the preprocessor on macros that torch's headers define and the light ones do not."""

from __future__ import annotations

import json
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from jitload.building.files_read import option_words, search_dirs
from jitload.cpptext.includes import tested_names, with_headers
from jitload.errors import CompileError
from jitload.host_cpp.steps import HostBuild, include_flags
from jitload.host_cpp.torch_errors import LACKING, light_macros
from jitload.host_cpp.torch_headers import FORWARDED, find_or_write_torch_headers
from jitload.request.request import Unit
from jitload.request.torch_operators import read_header, torch_include_dir
from jitload.request.torch_text import CPP_FLAGS
from jitload.toolchain.fingerprints import file_state, remembered
from jitload.toolchain.host import INCLUDE_DIR, read_macros


def check_conditions(build: HostBuild) -> None:
    """Raise `CompileError` if a condition tests what only torch's own headers define, such as `#ifdef SIZEOF_LONG`."""
    if lacking := {name for unit in build.host.units for name in _lacking_names(build, unit)}:
        log = f"conditions of the preprocessor test {', '.join(missing := sorted(lacking))}"
        raise CompileError(stage="host", name=build.request.name, log=log, hint=LACKING, missing=(*missing,))


def _lacking_names(build: HostBuild, unit: Unit) -> Iterator[str]:
    macros = [*option_words("-D", build.user_flags)]
    dirs = search_dirs([*map(Path, build.request.include_dirs)], build.user_flags, environment=())
    known = (INCLUDE_DIR, torch_include_dir(), *(path for path in dirs if (path / "cuda_runtime.h").is_file()))
    text = with_headers("#line 1 " + unit.pieces[0][1].partition("#line 1 ")[2], macros, dirs, known)  # not the prelude
    names, headers_tested = tested_names(text)
    light_dir = find_or_write_torch_headers(build.work.cache_dir)
    yield from (name for name in headers_tested if read_header(name) and not (light_dir / name).is_file())
    of_torch = _macros_of_torch(build, has_cuda=unit.is_mixed or "cuda" in text) if names else {}
    if tested := names & of_torch.keys():
        flags = (f"-I{light_dir}", *include_flags((), [*map(str, dirs)]), *(f"-D{macro}" for macro in macros))
        defined = read_macros((*_command(build), *flags), unit.pieces[0][1], build.work.dir)
        tested -= {name for name in defined.keys() & tested if defined[name] == of_torch[name]}
        yield from tested - (light_macros() & defined.keys()) if tested else ()


def _macros_of_torch(build: HostBuild, *, has_cuda: bool) -> dict[str, str]:
    """Return the macros, each with its definition, of those headers of torch that a source may include."""
    torch = torch_include_dir()
    dirs = (torch, torch / "torch/csrc/api/include", sysconfig.get_path("include"))
    command = (*_command(build), *(word for path in dirs for word in ("-isystem", str(path))))
    headers = [name for name in " ".join(FORWARDED.values()).split() if has_cuda or "cuda" not in name]
    text = "".join(f"#if __has_include(<{name}>)\n#include <{name}>\n#endif\n" for name in headers)

    def compute() -> str:
        own = read_macros(command, "", build.work.dir)
        return json.dumps({n: d for n, d in read_macros(command, text, build.work.dir).items() if n not in own})

    words = ("macros", file_state(torch / "torch/headeronly/version.h"), *command, text)
    macros: dict[str, str] = json.loads(remembered(words, build.work.cache_dir, compute))
    # Without CUDA's headers, those of torch for CUDA cannot be read.
    return macros if macros or not has_cuda else _macros_of_torch(build, has_cuda=False)


def _command(build: HostBuild) -> tuple[str, ...]:
    dirs = include_flags(build.cuda.include_dirs if build.cuda else (), ())
    return (*build.compiler.command, *CPP_FLAGS, *dirs, *(f"-idirafter{path}" for path in build.library_dirs))
