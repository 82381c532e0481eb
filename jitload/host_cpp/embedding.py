"""Embed cubins in hand-written C++ for `TVM_FFI_EMBED_CUBIN(name)`, and check the names before the compiler runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from jitload.cpptext.includes import read_headers
from jitload.cpptext.lexer import Token, code_tokens
from jitload.cpptext.preprocessor import split_directives
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
        from jitload.elf.cubin import read_image

        read_image(data, name=f"embed_cubin[{name!r}]")


def check_embeds(host: HostSource, include_dirs: Sequence[Path], device_name: str) -> None:
    """Check that each `TVM_FFI_EMBED_CUBIN(name)` in the C++ has a cubin, and that each cubin has such a macro.

    `device_name` is the name under which the cubin of `cuda_sources` is embedded, or "" if there is none.

    Raises:
        JitLoadError: A cubin or a macro is missing.
    """
    embedded = {name for name, _ in host.cubins}
    texts = [text for unit in host.units for _, text in unit.pieces]
    uses = _MacroUses(texts)
    # A missing cubin is no error if the user links objects or libraries, because one of them may define the cubin.
    linked = host.objects or [flag for flag in host.link_flags if flag not in ("-lcuda", "-lcudart")]
    if not linked and (missing := next((name for name in uses.unconditional if name not in embedded), None)):
        others = f". There are cubins named {', '.join(sorted(embedded))}" if embedded else ""
        raise JitLoadError(f"{_MACRO}({missing}) has no cubin: pass it as embed_cubin={{{missing!r}: …}}{others}")
    unused = sorted(embedded - set(uses.declared))
    if unused and not uses.in_macro:
        in_headers = _MacroUses(_read_user_headers(texts, include_dirs))
        unused = [name for name in unused if name not in in_headers.declared and not in_headers.in_macro]
        if unused:
            raise _unused_cubin(unused[0], [*uses.declared, *in_headers.declared], device_name)


def _unused_cubin(name: str, declared: Sequence[str], device_name: str) -> JitLoadError:
    argument, hint = f"embed_cubin[{name!r}]", ""
    if name == device_name:
        argument = "cuda_sources"
        hint = (
            f"\n    C++ that is passed with kernels must launch them: use {_MACRO}({name}) in it, or make two modules."
            "\n    If cuda_sources is C++ for the host compiler, pass kind='host'."
        )
    listed = f"it has: {', '.join(dict.fromkeys(declared))}" if declared else "it has none"
    return JitLoadError(f"{argument}: the C++ has no {_MACRO}({name}); {listed}{hint}")


def _read_user_headers(texts: Sequence[str], include_dirs: Sequence[Path]) -> list[str]:
    """Return the texts of the user's headers that `texts` may include, directly or through other headers."""
    paths = [path for path in read_headers(texts, include_dirs, ()) if path.is_file()]
    return [path.read_text(errors="replace") for path in paths]


class _MacroUses:
    """The uses of the `TVM_FFI_EMBED_CUBIN` macros in C++ texts.

    Attributes:
        declared: The cubins in `TVM_FFI_EMBED_CUBIN(name)`, and the cubins whose symbols the C++ uses directly.
        unconditional: The cubins in `TVM_FFI_EMBED_CUBIN(name)` outside of `#if`.
        in_macro: Whether a macro of the user contains `TVM_FFI_EMBED_CUBIN`. The macro may declare cubins of any name.
    """

    def __init__(self, texts: Sequence[str]) -> None:
        self.declared: list[str] = []
        self.unconditional: list[str] = []
        self.in_macro = False
        for text in texts:
            if _MACRO in text or _SYMBOL_PREFIX in text:
                self._read(code_tokens(text))

    def _read(self, tokens: Sequence[Token]) -> None:
        depth = 0  # the number of open `#if`
        for directive, run in split_directives(tokens):
            if directive:
                depth += directive.name.startswith("if") - (directive.name == "endif")
            for position, token in enumerate(run):
                if token.kind == "word" and token.text.startswith(_SYMBOL_PREFIX):
                    self.declared.append(token.text.removeprefix(_SYMBOL_PREFIX))
                elif directive:
                    self.in_macro = self.in_macro or token.text == _MACRO
                elif token.text == _MACRO and [t.text for t in run[position + 1 : position + 4 : 2]] == ["(", ")"]:
                    name = run[position + 2].text
                    self.declared.append(name)
                    self.unconditional += [name] if depth == 0 else []
