"""Names of cubins and the C++ that uses them in, the assembler text that embeds them out."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from jitload.device.headers import read_headers
from jitload.device.lexer import Token, tokenize
from jitload.errors import JitLoadError, ToolchainError
from jitload.sources import HostSource

_MACRO = "TVM_FFI_EMBED_CUBIN"
_LITERAL = re.compile(r'"([\w$]+)"')
_SHOWN = 12  # kernels in a message
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
    """Return the assembler text of one cubin, for a section of constants; the file's name as an assembler reads it."""
    return _CUBIN.format(name=name, file=file)


def check_embeds(host: HostSource, include_dirs: Sequence[Path], device_name: str) -> None:
    """See that each cubin has its macro and each macro its cubin, before the compiler runs.

    Args:
        host: The C++ and the cubins.
        include_dirs: Where its headers may be.
        device_name: The name under which `cuda_sources` is embedded, or "".

    Raises:
        JitLoadError: One has not.
    """
    given = {name for name, _ in host.cubins}
    texts = [text for unit in host.units for _, text in unit.pieces]
    used = _Uses(texts)
    # Another object of the link may bring what a macro asks for.
    others = host.objects or [flag for flag in host.link_flags if flag not in ("-lcuda", "-lcudart")]
    if not others and (missing := next((name for name in used.certain if name not in given), None)):
        raise JitLoadError(f"{_MACRO}({missing}) has no cubin: give it as embed_cubin={{{missing!r}: …}}")
    if double := next((name for name in used.from_bytes if name in given), None):
        raise JitLoadError(
            f"embed_cubin[{double!r}]: the C++ has bytes of its own under this name, {_MACRO}_FROM_BYTES({double}, …)"
        )
    _check_kernels(host, include_dirs, used)
    unused = sorted(given - set(used.possible))
    if unused and not used.is_open:
        in_headers = _Uses([path.read_text(errors="replace") for path in _headers(texts, include_dirs)])
        unused = [name for name in unused if name not in in_headers.possible and not in_headers.is_open]
        if unused:
            names = ", ".join(dict.fromkeys((*used.possible, *in_headers.possible)))
            there = f"it has: {names}" if names else "it has none"
            what = "cuda_sources" if unused[0] == device_name else f"embed_cubin[{unused[0]!r}]"
            raise JitLoadError(f"{what}: the C++ has no {_MACRO}({unused[0]}); {there}{_hint(unused[0], device_name)}")


def _hint(name: str, device_name: str) -> str:
    if name != device_name:
        return ""
    return (
        f"\n    C++ beside kernels launches them: say {_MACRO}({name}) in it, or make two modules of the two."
        "\n    If cuda_sources is C++ for the host's compiler, say so with kind='host'."
    )


def _check_kernels(host: HostSource, include_dirs: Sequence[Path], used: _Uses) -> None:
    """See that what `TVM_FFI_EMBED_CUBIN_GET_KERNEL` names is there, as far as the text tells.

    A cubin that is not would be an error of the compiler's. A kernel that is not is one of the call that asks for it,
    which may never come, so that it is a warning here.
    """
    images = dict(host.cubins)
    known = {*images, *used.possible, *used.from_bytes}
    for wanted in used.kernels:
        pieces = [(label, text) for unit in host.units for label, text in unit.pieces]
        kernel = f'"{wanted.kernel}"' if wanted.kernel else "…"
        place = f"{pieces[wanted.text][0]}:{wanted.line}: {_MACRO}_GET_KERNEL({wanted.cubin}, {kernel})"
        if wanted.cubin not in known:
            if used.is_open or _may_be_elsewhere(host, [text for _, text in pieces], include_dirs):
                continue
            there = f"it has: {', '.join(sorted(known))}" if known else "it has none"
            raise JitLoadError(f"{place}: the C++ has no {_MACRO}({wanted.cubin}); {there}")
        if wanted.kernel and not used.may_catch and (image := images.get(wanted.cubin)):
            from jitload.elf.cubin import read_image

            _look_for_kernel(place, wanted.kernel, [kernel.symbol for kernel in read_image(image).kernels])


def _may_be_elsewhere(host: HostSource, texts: Sequence[str], include_dirs: Sequence[Path]) -> bool:
    """Tell whether a header may declare cubins, one that only an option leads to among them."""
    flags = [flag for unit in host.units for flag in (*unit.flags, *host.flags)]
    if any(flag.startswith(("-I", "-i", "-D", "@")) for flag in flags):
        return True
    return any(_MACRO in path.read_text(errors="replace") for path in _headers(texts, include_dirs))


def _look_for_kernel(place: str, kernel: str, symbols: Sequence[str]) -> None:
    if kernel in symbols:
        return

    from jitload.device.demangle import demangle

    def demangled(symbol: str) -> str:
        with suppress(ToolchainError):  # there is no demangler
            return demangle(symbol) or ""
        return ""

    written = {symbol: demangled(symbol) for symbol in symbols}
    names = [f"{symbol} ({text})" if text else symbol for symbol, text in written.items()]
    shown = ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
    mangled = next((symbol for symbol, text in written.items() if re.search(rf"\b{re.escape(kernel)}[(<]", text)), "")
    hint = f'\n    Ask for "{mangled}", or compile the kernel as extern "C".' if mangled else ""
    _log.warning("%s: the cubin has no such kernel; it has: %s%s", place, shown or "none", hint)


def _headers(texts: Sequence[str], include_dirs: Sequence[Path]) -> Iterator[Path]:
    """Yield the user's headers; object files and others may hold the macro too, but nobody looks there."""
    yield from (path for path in read_headers(texts, include_dirs, ()) if path.is_file())


class _Wanted(NamedTuple):  # a class that is made in no time, at each start of a build
    """A kernel that the C++ asks for: in which text and where, of which cubin, and its name where that is written."""

    text: int
    line: int
    cubin: str
    kernel: str


def _read_wanted(text: int, line: int, tokens: Sequence[str]) -> Iterator[_Wanted]:
    """Yield what `GET_KERNEL(cubin, "kernel")` asks for; of an expression in place of the literal, the cubin alone."""
    if len(tokens) > 2 and tokens[0] == "(" and tokens[1].isidentifier() and tokens[2] == ",":
        literal = _LITERAL.fullmatch(tokens[3]) if tokens[4:] == [")"] else None
        yield _Wanted(text=text, line=line, cubin=tokens[1], kernel=literal[1] if literal else "")


class _Uses:
    """The names in `TVM_FFI_EMBED_CUBIN(…)`.

    Attributes:
        certain: Those outside of `#if`.
        from_bytes: Those of arrays in the C++.
        possible: Those anywhere, and those whose symbols the C++ declares itself.
        kernels: What is asked for with `TVM_FFI_EMBED_CUBIN_GET_KERNEL`, outside of `#if`.
        is_open: Whether a macro of the user's may make more.
        may_catch: Whether the C++ may look for kernels that need not be there.
    """

    def __init__(self, texts: Sequence[str]) -> None:
        self.certain: list[str] = []
        self.from_bytes: list[str] = []
        self.possible: list[str] = []
        self.kernels: list[_Wanted] = []
        self.is_open = False
        self.may_catch = False
        for number, text in enumerate(texts):
            if _MACRO in text or "__tvm_ffi__cubin_" in text:
                self._read(number, [token for token in tokenize(text) if token.kind != "comment"])

    def _read(self, number: int, tokens: Sequence[Token]) -> None:
        depth = 0
        for at, token in enumerate(tokens):
            following = [other.text for other in tokens[at + 1 : at + 6]]
            if token.text == "#" and token.in_directive and following:
                depth += following[0].startswith("if") - (following[0] == "endif")
            elif token.text == _MACRO and token.in_directive:
                self.is_open = True
            elif token.text == _MACRO and following[:1] == ["("] and following[2:3] == [")"]:
                self.possible.append(following[1])
                if depth == 0:
                    self.certain.append(following[1])
            elif token.text == f"{_MACRO}_FROM_BYTES" and following[:1] == ["("] and not token.in_directive:
                self.from_bytes.append(following[1])
            elif token.text == f"{_MACRO}_GET_KERNEL" and not token.in_directive and depth == 0:
                self.kernels += _read_wanted(number, token.line, following)
            elif token.text == "try":
                self.may_catch = True
            elif token.kind == "word" and token.text.startswith("__tvm_ffi__cubin_"):
                self.possible.append(token.text.removeprefix("__tvm_ffi__cubin_"))
