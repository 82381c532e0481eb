"""Embed cubins in hand-written C++ for `TVM_FFI_EMBED_CUBIN(name)`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from jitload.cpptext.includes import with_headers
from jitload.errors import JitLoadError
from jitload.request.request import HostSource

_MACRO = "TVM_FFI_EMBED_CUBIN"
_SYMBOL_PREFIX = "__tvm_ffi__cubin_"
_INCBIN = """\
.balign 16
.globl __tvm_ffi__cubin_{name}
.hidden __tvm_ffi__cubin_{name}
__tvm_ffi__cubin_{name}:
.incbin "{file}"
.globl __tvm_ffi__cubin_{name}_end
.hidden __tvm_ffi__cubin_{name}_end
__tvm_ffi__cubin_{name}_end:
.byte 0
"""


def assembler_text(names: Sequence[str]) -> str:
    """Return the text of an assembler file that embeds the file `<name>.cubin` for each name."""
    cubins = "".join(incbin_text(name, f"{name}.cubin") for name in names)
    return f'.section .rodata,"a"\n{cubins}.section .note.GNU-stack,"",%progbits\n'


def incbin_text(name: str, file: str) -> str:
    """Return assembler text that embeds the cubin `file` in the current section. The file's name must be escaped."""
    return _INCBIN.format(name=name, file=file)


def check_cubins(host: HostSource) -> None:
    """Raise LoadError if the bytes to embed are not a cubin."""
    for name, data in host.cubins:
        from jitload.elf.cubin import read_cubin

        read_cubin(data, name=f"embed_cubin[{name!r}]")


def check_embeds(host: HostSource, include_dirs: Sequence[Path], device_name: str) -> None:
    """Check that each cubin may be used: that its name, or a macro that may make the name with `##`, is in the C++.

    `device_name` is the name under which the cubin of `cuda_sources` is embedded, or "" if there is none.

    Raises:
        JitLoadError: The C++ does not use a cubin.
    """
    texts = [text for unit in host.units for _, text in unit.pieces]
    if host.cubins:
        texts = [with_headers("\n".join(texts), (), include_dirs, ())]
    words = {word for text in texts for word in re.findall(r"\w+|##", text)}
    for name, _ in host.cubins:
        if words.isdisjoint((name, f"{_SYMBOL_PREFIX}{name}", "##")):
            raise _unused_cubin(name, device_name)


def _unused_cubin(name: str, device_name: str) -> JitLoadError:
    argument, hint = f"embed_cubin[{name!r}]", ""
    if name == device_name:
        argument = "cuda_sources"
        hint = (
            f"\n    C++ that is passed with kernels must launch them: use {_MACRO}({name}) in it, or make two modules."
            "\n    If cuda_sources is C++ for the host compiler, pass kind='host'."
        )
    return JitLoadError(f"{argument}: the C++ has no {_MACRO}({name}){hint}")


def missing_cubin_hint(log: str) -> str:
    """Return advice about an error of the linker if a cubin is missing, otherwise ""."""
    missing = re.search(rf"undefined .*{_SYMBOL_PREFIX}(\w+)", log)
    return f"{_MACRO}({missing[1]}) has no cubin: pass it as embed_cubin={{{missing[1]!r}: …}}." if missing else ""
