"""Device text in, the same text out with a second form of the kernels whose threads meet at barriers.

On the CPU the threads of such a kernel are fibers, which take turns: right for every kernel, and slow. The second form
of a kernel is plain loops. Every stretch between two barriers is a loop over the block's threads, which the compiler
may turn into vector instructions; what stands around barriers, `for`, `while`, `do`, `if`, stays outside of those
loops and is gone through once for all threads:

    float sum = 0;                                 float sum[1024];
    for (int k = 0; k < n; k += 16) {              for each thread: sum[thread] = 0;
      tile[threadIdx.x] = x[k + threadIdx.x];      for (int k = 0; k < n; k += 16) {
      __syncthreads();                       ->      for each thread: tile[…] = x[k + …];
      sum += tile[15 - threadIdx.x];                 for each thread: sum[thread] += tile[15 - …];
      __syncthreads();                             }
    }

A form is written for a kernel that is understood completely, and only then:

- Barriers are `__syncthreads();` as statements of their own, under conditions that are the same for all threads of a
  block: made of numbers, template parameters, kernel parameters, blockIdx, blockDim, gridDim, and of variables that get
  nothing else, in statements all threads go through (`split_names`).
- Warp operations with a full mask count as barriers in such places, and calls of the source's own functions that hold a
  barrier are written out (`split_inline`).
- A variable with one value for all threads stays one variable. One that only depends on the thread's index is worked
  out again in each loop. Any other one that lives across a barrier is an array with an element for each thread; so is
  whether a thread has returned.
- Macros that the text defines are replaced (`split_macros`); of all other names the preprocessor is asked whether
  they are macros after all, and the form is left out if one is.
- Everything else, `goto`, `asm`, types of the kernel's own, a barrier within an expression, a hidden name, leaves a
  kernel on the fibers. So does a wait that no text shows, in a function that a kernel calls: a form counts only if
  its code in the object file reaches no wait. One that does not compile is dropped.

Threads between two barriers run one after the other, which is one of the orders that a GPU may choose. `printf` keeps a
kernel on the fibers, where the order is the one there always was.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from jitload.cpptext.lexer import Token, tokenize
from jitload.cpu.split_declarations import Variable
from jitload.cpu.split_inline import SHUFFLES, VOTES, Function, Inliner, find_waiting
from jitload.cpu.split_macros import Expansion, Macros
from jitload.cpu.split_names import Names
from jitload.cpu.split_region import Regions
from jitload.cpu.split_scopes import Scopes, Surroundings
from jitload.cpu.split_source import (
    Kernel,
    find_ambiguous,
    find_constants,
    find_functions,
    find_kernels,
    find_specialized,
    read_parameters,
    read_template,
)
from jitload.cpu.split_strides import find_empty, find_strides, mark_strides
from jitload.cpu.split_text import write_tokens_apart
from jitload.cpu.split_tree import BARRIER, WARP, NotUnderstoodError, read_statements, refuse_returned_values
from jitload.cpu.split_turns import Turns
from jitload.cpu.split_words import HARMLESS_MACROS, KEYWORDS
from jitload.cpu.split_write import Writer
from jitload.device.kernels import quoted_label
from jitload.model import Candidate

SPLIT = "__jitload_split_"  # begins the name of a second form
OFF = "JITLOAD_CPU_FIBERS"  # a macro that a user may define: no kernel is split
_KEPT_ON_FIBERS = re.compile(
    r"printf|__(?:uni|match|reduce|activemask|syncthreads_)\w*|__nanosleep|atomic(?:CAS|Exch)\w*"
)
_WAITS = r"__sync(?:threads|warp)|__shfl_\w+_sync"
# A loop that may step by more than one: `for (…; …; i += …)`, or a `while` with a `+=` somewhere.
_STRIDES = (
    r"\bfor\s*\([^;]*;[^;{}]*[<>][^;{}]*;\s*\w+\s*(?:\+=|=)(?!\s*1\b)|\bwhile\s*\([^;{}]*[<>][^;{}]*\)\s*\{[^}]*\+"
)
_WARP_FUNCTIONS = frozenset({"__syncwarp", *SHUFFLES, *VOTES})
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Pieces of a source with second forms in them.

    Attributes:
        pieces: Label and text of each piece.
        forms: By a kernel's name: the macro that is defined where its second form is compiled.
        reasons: By a kernel's name: why one with a barrier stays on the fibers.
        strides: How many loops have their turns outside and the threads inside.
        is_plain: Whether forms were written as simply as they can be.
    """

    pieces: tuple[tuple[str, str], ...]
    forms: dict[str, str] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    strides: int = 0
    is_plain: bool = False


def split_kernels(
    pieces: Sequence[tuple[str, str]],
    candidates: Sequence[Candidate],
    options: Sequence[str] = (),
    *,
    has_strides: bool = True,
) -> Split:
    """Write the second forms of the kernels in a source.

    Args:
        pieces: Label and text of each piece.
        candidates: What looks like a kernel in them.
        options: Preprocessor lines that come before the source.
        has_strides: Whether turns of loops may stand outside, and loops leave out threads.
    """
    plain = Split(pieces=tuple(pieces))
    worth = re.compile(rf"{_WAITS}|{_STRIDES}" if has_strides else _WAITS)
    if not any(worth.search(text) for _, text in pieces) or any(OFF in line for line in options):
        return plain
    source = _Source(pieces, options, has_strides=has_strides)
    texts: list[tuple[str, str]] = []
    forms: dict[str, str] = {}
    reasons: dict[str, str] = {}
    names = [candidate.name for candidate in candidates]
    for number, (label, text) in enumerate(source.pieces):
        parts, done = [], 0
        for kernel in source.kernels(number):
            name = _find_name(candidates, number, source.tokens[number][kernel.name])
            if name is None:
                continue
            macro = f"__JITLOAD_SPLIT_{len(forms)}"
            form, reason = source.write(number, kernel, macro)
            if names.count(name) != 1:
                reason = "several kernels of this name"
            if reason:
                if source.may_wait(number, kernel):
                    reasons[name] = reason
                    _log.debug("kernel %s stays on the fibers: %s", name, reason)
                continue
            closing = source.tokens[number][kernel.end]
            forms[name] = macro
            parts += [text[done : closing.start + 1], form, f'\n#line {closing.line} "{quoted_label(label)}"\n']
            done = closing.start + 1
        texts.append((label, "".join((*parts, text[done:]))))
    return Split(pieces=tuple(texts), forms=forms, reasons=reasons, strides=source.strides, is_plain=not has_strides)


def split_expression(expression: str) -> tuple[str, str]:
    """Return a kernel's name without template arguments, and the expression of its second form; "" where it has none.

    Example:
        >>> split_expression("ns::scale<float, 4>")
        ('ns::scale', 'ns::__jitload_split_scale<float, 4>')
    """
    match = re.fullmatch(r"((?:\w+\s*::\s*)*)(\w+)(\s*<.*>)?", expression.strip(), re.DOTALL)
    if match is None:
        return "", ""
    scope = re.sub(r"\s", "", match[1])
    return f"{scope}{match[2]}", f"{scope}{SPLIT}{match[2]}{match[3] or ''}"


def _is_wait(text: str, functions: Mapping[str, Function]) -> bool:
    return text == BARRIER or text in functions or text.startswith(("__shfl_", "__ballot_", "__any_", "__all_"))


def _find_name(candidates: Sequence[Candidate], piece: int, token: Token) -> str | None:
    for candidate in candidates:
        if (candidate.piece, candidate.line) == (piece, token.line) and candidate.name.split("::")[-1] == token.text:
            return candidate.name
    return None


class _Source:
    """The pieces of a source, and what they say outside of kernels."""

    def __init__(self, pieces: Sequence[tuple[str, str]], options: Sequence[str], *, has_strides: bool) -> None:
        self._has_strides = has_strides
        self.strides = 0  # loops whose turns stand outside
        self.pieces = [(label, text.replace("\r\n", "\n")) for label, text in pieces]
        whole = [tokenize(text) for _, text in self.pieces]
        self._macros = Macros((tokenize("\n".join(options)), *whole))
        self._all = whole
        self.tokens = [
            [token for token in tokens if token.kind != "comment" and not token.in_directive] for tokens in whole
        ]
        self._kernels = [list(find_kernels(tokens)) for tokens in self.tokens]
        outside = [token for number in range(len(whole)) for token in self._outside(number)]
        words = {token.text for token in outside}
        self._strangers = self._macros.has_strange_headers or "operator" in words
        self._functions, self._by_value = find_functions(outside)
        self._waiting = find_waiting(outside)
        self._constants = find_constants(outside)
        self._ambiguous = find_ambiguous(outside)
        self._specialized = {name for tokens in self.tokens for name in find_specialized(tokens)}

    def kernels(self, piece: int) -> list[Kernel]:
        """Return the kernels that may have a barrier, or a loop with strides."""
        return [
            kernel for kernel in self._kernels[piece] if self.may_wait(piece, kernel) or self._may_stride(piece, kernel)
        ]

    def may_wait(self, piece: int, kernel: Kernel) -> bool:
        """Tell whether a kernel may have a barrier."""
        inside = self.tokens[piece][kernel.brace : kernel.end]
        return self._macros.hide(BARRIER) or any(_is_wait(token.text, self._waiting) for token in inside)

    def _may_stride(self, piece: int, kernel: Kernel) -> bool:
        words = {token.text for token in self.tokens[piece][kernel.brace : kernel.end]}
        return self._has_strides and any(word in words or self._macros.hide(word) for word in ("for", "while"))

    def write(self, piece: int, kernel: Kernel, macro: str) -> tuple[str, str]:
        """Return the second form of a kernel, for behind its definition, or why there is none."""
        try:
            return self._write(piece, kernel, macro), ""
        except NotUnderstoodError as reason:
            return "", str(reason)
        except (LookupError, ValueError, StopIteration, RecursionError) as error:  # what nobody has thought of
            return "", f"not read ({error!r})"

    def _write(self, piece: int, kernel: Kernel, macro: str) -> str:
        tokens = self.tokens[piece]
        self._refuse_directives(piece, tokens[kernel.head].start, tokens[kernel.end].start)
        expansion = self._macros.before((piece + 1, tokens[kernel.head].start))
        code = expansion.expand(tokens[kernel.brace + 1 : kernel.end])
        if _WARP_FUNCTIONS & self._functions:
            raise NotUnderstoodError("warp operations of the source's own")
        if found := next((token.text for token in code if _KEPT_ON_FIBERS.fullmatch(token.text)), ""):
            raise NotUnderstoodError(found)
        given = expansion.expand(tokens[kernel.open + 1 : kernel.close])
        parameters = read_parameters(given, 1 << 30)
        inliner = Inliner(self._waiting, parameters, code, expand=expansion.expand, ambiguous=self._ambiguous)
        code = inliner.open()
        if expansion.used & {token.text for token in (*code, *given)}:
            raise NotUnderstoodError("a macro that names itself")
        place = (piece + 1, tokens[kernel.head].start)
        is_template = tokens[kernel.head].text == "template"
        if is_template and (tokens[kernel.name].text in self._specialized or self._macros.last_header > place):
            raise NotUnderstoodError("a template with a specialization, or with headers behind it")
        template, constants, types = read_template(tokens[kernel.head : kernel.name])
        around = Surroundings(
            constants=self._constants | constants, types=types, by_value=self._by_value, functions=self._functions
        )
        refuse_returned_values(code)
        body = self._write_body(code, parameters, around, quoted_label(self.pieces[piece][0]))
        text = write_tokens_apart(given)
        head = (
            f"{template}__JITLOAD_INLINE void {SPLIT}{tokens[kernel.name].text}"
            f"(const jitload_cpu_place* __jitload_place{', ' + text if parameters else ''})"
        )
        guard = _guard([*tokenize(template), *given, *code], expansion, inliner.words)
        return f"\n#if {guard}\n#define {macro}\n{head} {{\n{body}\n}}\n#endif"

    def _write_body(
        self, code: Sequence[Token], parameters: Sequence[Variable], around: Surroundings, label: str
    ) -> str:
        """Return the body: with turns of loops outside where that can be, which costs nothing where it cannot."""
        waits = any(token.text in (BARRIER, WARP, "__syncwarp") for token in code)
        statements = read_statements(code)
        closed: set[int] = set()  # statements that threads go through on their own after all
        while self._has_strides and find_strides(code, statements):
            marked = mark_strides(code, statements, closed)
            names = Names(Scopes(code, marked, parameters), marked, around)
            regions = Regions(names, label, strangers=self._strangers)
            turns = Turns(names, regions)
            try:
                body = Writer(names, regions, turns, has_guards=True).write(marked)
            except NotUnderstoodError as error:
                if error.at < 0 or error.at in closed:
                    break
                closed.add(error.at)
                continue
            if empty := find_empty(marked, statements, turns.places | turns.shared):
                closed |= empty
                continue
            if not turns.places and not (waits and turns.shared):
                break
            self.strides += len(turns.places)
            return body
        if not waits:
            raise NotUnderstoodError("no barrier in its own text")
        names = Names(Scopes(code, statements, parameters), statements, around)
        regions = Regions(names, label, strangers=self._strangers)
        return Writer(names, regions, has_guards=self._has_strides).write(statements)

    def _refuse_directives(self, piece: int, start: int, end: int) -> None:
        inside = [token for token in self._all[piece] if token.in_directive and start < token.start < end]
        for token, following in zip(inside, [*inside[1:], None], strict=False):
            if token.text == "#" and (following is None or following.text != "pragma"):
                raise NotUnderstoodError("a preprocessor line in it")

    def _outside(self, piece: int) -> Iterator[Token]:
        at = 0
        for kernel in self._kernels[piece]:
            yield from self.tokens[piece][at : kernel.brace]
            at = kernel.end
        yield from self.tokens[piece][at:]


def _guard(tokens: Sequence[Token], expansion: Expansion, more: AbstractSet[str]) -> str:
    """Return the condition under which no name is a macro that was not looked into."""
    words = (
        {*more, *(token.text for token in tokens if token.kind == "word")} - KEYWORDS - HARMLESS_MACROS - expansion.used
    )
    undefined = (f"!defined({word})" for word in sorted(words) if word.isascii())
    defined = (f"defined({word})" for word in sorted(expansion.used))
    same = (f"({word}) == ({value})" for word, value in sorted(expansion.values.items()))
    return " && ".join((*defined, *same, *undefined))
