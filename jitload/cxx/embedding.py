"""Embed cubins in a library for hand-written C++, and check the names by which the C++ refers to them."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from jitload.cpptext.includes import read_headers
from jitload.cpptext.lexer import Token, code_tokens
from jitload.cpptext.preprocessor import split_directives
from jitload.errors import JitLoadError, ToolchainError
from jitload.sources import HostSource

_MACRO = "TVM_FFI_EMBED_CUBIN"
_SYMBOL = "__tvm_ffi__cubin_"
_LITERAL = re.compile(r'"([\w$]+)"')
_MAX_SHOWN = 12  # kernels in a message
_log = logging.getLogger(__name__)
_CUBIN = """\
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


def embed_text(names: Sequence[str]) -> str:
    """Return assembler text that puts `<name>.cubin` behind the symbols of `TVM_FFI_EMBED_CUBIN(name)`."""
    cubins = "".join(cubin_text(name, f"{name}.cubin") for name in names)
    return f'.section .rodata,"a"\n{cubins}.section .note.GNU-stack,"",%progbits\n'


def cubin_text(name: str, file: str) -> str:
    """Return the assembler text of one cubin, for a read-only section; `file` is its name, escaped as a literal."""
    return _CUBIN.format(name=name, file=file)


def check_embeds(host: HostSource, include_dirs: Sequence[Path], device_name: str) -> None:
    """Check that each cubin has its macro and each macro its cubin, before the compiler runs.

    Args:
        host: The C++ and the cubins.
        include_dirs: The directories of its headers.
        device_name: The name under which the kernels of `cuda_sources` are embedded, or "".

    Raises:
        JitLoadError: A cubin has no macro, or a macro no cubin.
    """
    embedded = {name for name, _ in host.cubins}
    texts = [text for unit in host.units for _, text in unit.pieces]
    uses = _Uses(texts)
    # The link may get the cubin of a macro from another object.
    others = host.objects or [flag for flag in host.link_flags if flag not in ("-lcuda", "-lcudart")]
    if not others and (missing := next((name for name in uses.certain if name not in embedded), None)):
        raise JitLoadError(f"{_MACRO}({missing}) has no cubin: give it as embed_cubin={{{missing!r}: …}}")
    if double := next((name for name in uses.from_bytes if name in embedded), None):
        raise JitLoadError(
            f"embed_cubin[{double!r}]: the C++ has bytes of its own under this name, {_MACRO}_FROM_BYTES({double}, …)"
        )
    _check_kernels(host, include_dirs, uses)
    unused = sorted(embedded - set(uses.possible))
    if unused and not uses.may_have_others:
        in_headers = _Uses([path.read_text(errors="replace") for path in _headers(texts, include_dirs)])
        unused = [name for name in unused if name not in in_headers.possible and not in_headers.may_have_others]
        if unused:
            names = ", ".join(dict.fromkeys((*uses.possible, *in_headers.possible)))
            existing = f"it has: {names}" if names else "it has none"
            argument = "cuda_sources" if unused[0] == device_name else f"embed_cubin[{unused[0]!r}]"
            problem = f"{argument}: the C++ has no {_MACRO}({unused[0]}); {existing}"
            raise JitLoadError(f"{problem}{_hint(unused[0], device_name)}")


def _hint(name: str, device_name: str) -> str:
    if name != device_name:
        return ""
    return (
        f"\n    C++ beside kernels launches them: say {_MACRO}({name}) in it, or make two modules of the two."
        "\n    If cuda_sources is C++ for the host's compiler, say so with kind='host'."
    )


def _check_kernels(host: HostSource, include_dirs: Sequence[Path], uses: _Uses) -> None:
    """Check that the cubins and kernels exist that `TVM_FFI_EMBED_CUBIN_GET_KERNEL` names, as far as the text tells.

    A missing cubin is an error here, because the compiler would fail. A missing kernel is only a warning, because the
    call that needs it may never be made.
    """
    images = dict(host.cubins)
    names = {*images, *uses.possible, *uses.from_bytes}
    pieces = [(label, text) for unit in host.units for label, text in unit.pieces]
    for use in uses.kernels:
        kernel = f'"{use.kernel}"' if use.kernel else "…"
        position = f"{pieces[use.text][0]}:{use.line}: {_MACRO}_GET_KERNEL({use.cubin}, {kernel})"
        if use.cubin not in names:
            if uses.may_have_others or _may_be_in_header(host, [text for _, text in pieces], include_dirs):
                continue
            existing = f"it has: {', '.join(sorted(names))}" if names else "it has none"
            raise JitLoadError(f"{position}: the C++ has no {_MACRO}({use.cubin}); {existing}")
        if use.kernel and not uses.has_try and (image := images.get(use.cubin)):
            from jitload.device.cubin import read_image

            _check_kernel(position, use.kernel, [kernel.symbol for kernel in read_image(image).kernels])


def _may_be_in_header(host: HostSource, texts: Sequence[str], include_dirs: Sequence[Path]) -> bool:
    """Tell whether a header may declare cubins, or one that only an option of the compiler includes."""
    flags = [flag for unit in host.units for flag in (*unit.flags, *host.flags)]
    if any(flag.startswith(("-I", "-i", "-D", "@")) for flag in flags):
        return True
    return any(_MACRO in path.read_text(errors="replace") for path in _headers(texts, include_dirs))


def _check_kernel(position: str, kernel: str, symbols: Sequence[str]) -> None:
    if kernel in symbols:
        return

    from jitload.device.demangle import demangle

    def readable(symbol: str) -> str:
        with suppress(ToolchainError):  # there is no demangler
            return demangle(symbol) or ""
        return ""

    texts = {symbol: readable(symbol) for symbol in symbols}
    names = [f"{symbol} ({text})" if text else symbol for symbol, text in texts.items()]
    rest = f" and {len(names) - _MAX_SHOWN} more" if len(names) > _MAX_SHOWN else ""
    mangled = next((symbol for symbol, text in texts.items() if re.search(rf"\b{re.escape(kernel)}[(<]", text)), "")
    hint = f'\n    Ask for "{mangled}", or compile the kernel as extern "C".' if mangled else ""
    existing = ", ".join(names[:_MAX_SHOWN]) + rest or "none"
    _log.warning("%s: the cubin has no such kernel; it has: %s%s", position, existing, hint)


def _headers(texts: Sequence[str], include_dirs: Sequence[Path]) -> Iterator[Path]:
    """Yield the user's headers; object files are not searched for the macro."""
    yield from (path for path in read_headers(texts, include_dirs, ()) if path.is_file())


class _KernelUse(NamedTuple):
    """A kernel that the C++ asks for: the number of the text, the line, the cubin, and the kernel of a literal."""

    text: int
    line: int
    cubin: str
    kernel: str


class _Uses:
    """The names that C++ uses in `TVM_FFI_EMBED_CUBIN(…)` and its kin.

    Attributes:
        certain: The names outside of `#if`.
        from_bytes: The names of arrays in the C++.
        possible: The names anywhere, and those whose symbols the C++ declares itself.
        kernels: The kernels of `TVM_FFI_EMBED_CUBIN_GET_KERNEL` outside of `#if`.
        may_have_others: Whether a macro of the user's may use more names.
        has_try: Whether the C++ may handle the error for a kernel that does not exist.
    """

    def __init__(self, texts: Sequence[str]) -> None:
        self.certain: list[str] = []
        self.from_bytes: list[str] = []
        self.possible: list[str] = []
        self.kernels: list[_KernelUse] = []
        self.may_have_others = False
        self.has_try = False
        for number, text in enumerate(texts):
            if _MACRO in text or _SYMBOL in text:
                self._read(number, code_tokens(text))

    def _read(self, number: int, tokens: Sequence[Token]) -> None:
        depth = 0  # of `#if`
        for directive, run in split_directives(tokens):
            if directive:
                depth += directive.name.startswith("if") - (directive.name == "endif")
            for index, token in enumerate(run):
                if token.text == "try":
                    self.has_try = True
                elif token.kind == "word" and token.text.startswith(_SYMBOL):
                    self.possible.append(token.text.removeprefix(_SYMBOL))
                elif directive:
                    self.may_have_others = self.may_have_others or token.text == _MACRO
                elif token.text.startswith(_MACRO):
                    following = [other.text for other in run[index + 1 : index + 6]]
                    self._read_macro(token, following, number, is_certain=depth == 0)

    def _read_macro(self, macro: Token, following: list[str], text: int, *, is_certain: bool) -> None:
        if following[:1] != ["("] or len(following) < 3:
            return
        name = following[1]
        if macro.text == _MACRO and following[2] == ")":
            self.possible.append(name)
            self.certain += [name] if is_certain else []
        elif macro.text == f"{_MACRO}_FROM_BYTES":
            self.from_bytes.append(name)
        elif macro.text == f"{_MACRO}_GET_KERNEL" and is_certain and name.isidentifier() and following[2] == ",":
            literal = _LITERAL.fullmatch(following[3]) if following[4:] == [")"] else None
            self.kernels.append(_KernelUse(text, macro.line, cubin=name, kernel=literal[1] if literal else ""))
