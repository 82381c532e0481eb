"""A kernel's statements and what is known of its names in, the text of its split form out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from jitload.cpu.split_declarations import Variable
from jitload.cpu.split_guards import find_guard
from jitload.cpu.split_names import Names
from jitload.cpu.split_region import Item, Regions
from jitload.cpu.split_scopes import SCOPED
from jitload.cpu.split_strides import Stride, find_stride, is_shared_loop, reads_the_same
from jitload.cpu.split_text import declare, write_tokens_apart
from jitload.cpu.split_tree import NotUnderstoodError, Statement
from jitload.cpu.split_turns import Turns

_HEAD = """\
const uint3 blockIdx = {__jitload_place->at[0], __jitload_place->at[1], __jitload_place->at[2]};
const dim3 blockDim(__jitload_place->block[0], __jitload_place->block[1], __jitload_place->block[2]);
const dim3 gridDim(__jitload_place->grid[0], __jitload_place->grid[1], __jitload_place->grid[2]);
const size_t __jitload_width = blockDim.x, __jitload_height = blockDim.y, __jitload_depth = blockDim.z;
const size_t __jitload_count = __jitload_width * __jitload_height * __jitload_depth;
volatile jitload_cpu_place* const __jitload_fault = const_cast<jitload_cpu_place*>(__jitload_place);
if (__jitload_width > 1024 || __jitload_height > 1024 || __jitload_depth > 1024) __builtin_unreachable();
"""


class Writer:
    """Writes one kernel's body.

    Args:
        names: What its names stand for.
        regions: What writes the loops between its barriers.
        turns: What writes loops with strides; without it, each thread goes through them by itself.
        has_guards: Whether loops may leave out threads that have nothing to do.
    """

    def __init__(self, names: Names, regions: Regions, turns: Turns | None = None, *, has_guards: bool) -> None:
        self._names = names
        self._turns = turns
        self._has_guards = has_guards
        self._code = names.scopes.code
        self._regions = regions
        self._lines: list[str] = []
        self._gone = False  # threads may have returned before

    def write(self, statements: Sequence[Statement]) -> str:
        """Return the body.

        Raises:
            NotUnderstoodError: A variable or a branch is of a kind that cannot be split.
        """
        self._lines = [_HEAD]
        self._gone = self._returns_in_loop(statements)
        if any(token.text == "return" for token in self._code):
            self._lines.append("unsigned char __jitload_gone[1024] = {};\nsize_t __jitload_gone_count = 0;")
        for parameter in self._names.scopes.parameters:
            if parameter not in self._names.uniform:
                self._lines.append(self._regions.keep_parameter(parameter))
        self._sequence(statements)
        return "\n".join(self._lines)

    def _returns_in_loop(self, statements: Sequence[Statement]) -> bool:
        for one in statements:
            if one.first in self._names.scopes.structural:
                words = {token.text for token in self._code[one.first : one.last + 1]}
                if one.kind in ("for", "while", "do") and "return" in words:
                    return True
                if self._returns_in_loop((*one.body, *one.other)):
                    return True
        return False

    # ---- what all threads go through together

    def _sequence(self, statements: Sequence[Statement]) -> None:
        run: list[Item] = []
        for one in statements:
            names = self._names
            texts = [token.text for token in self._code[one.first : one.last + 1]]
            if one.kind == "barrier":
                run = self._flush(run)
            elif one.kind == "warp":
                run = self._flush(run)
                self._lines.append(self._regions.exchange(one.first))
            elif one.first in names.scopes.structural or self._returns_together(one):
                run = self._flush(run)
                self._compound(one)
            elif names.scopes.declared.get(one.first):
                run = self._declaration(one, run)
            elif one.kind == "plain" and self._is_verbatim(one, texts):
                run = self._flush(run)
                self._verbatim(one.first, one.last)
            elif one.kind == "plain" and one.jumps:
                raise NotUnderstoodError("`continue` in a `switch`")
            elif (stride := self._stride(one, run)) is not None:
                run = self._flush(run)
                self._walk(one, stride)
            elif texts != [";"]:
                run.append(Item(first=one.first, last=one.last))
        self._flush(run)

    def _is_verbatim(self, one: Statement, texts: Sequence[str]) -> bool:
        """Tell whether all threads go through a statement together, or names behind it may mean something else."""
        jumps = (["return", ";"], ["break", ";"], ["continue", ";"])
        return texts[0] in SCOPED or texts in jumps or self._names.is_uniform_statement(one)

    def _returns_together(self, one: Statement) -> bool:
        """Tell whether this is `if (…) return;` with a condition that all threads share."""
        if one.kind != "if" or one.other or len(one.body) != 1:
            return False
        inner = [token.text for token in self._code[one.body[0].first : one.body[0].last + 1]]
        return inner == ["return", ";"] and self._names.is_uniform(*one.heads[0])

    def _compound(self, one: Statement) -> None:
        names, code = self._names, self._code
        conditions = one.heads[1:2] if one.kind == "for" else one.heads
        for first, last in conditions:
            if first <= last and not names.is_uniform(first, last):
                text = " ".join(token.text for token in code[first : last + 1])
                raise NotUnderstoodError(f"a barrier under a condition that threads may differ in: {text}", one.first)
        if one.kind == "for":
            self._check_head(one)
        if self._turns and is_shared_loop(code, replace(one, has_barrier=any(inner.has_barrier for inner in one.body))):
            if not reads_the_same(names, one):
                raise NotUnderstoodError("a loop whose threads read different things", one.first)
            self._turns.shared.add(one.first)
        head = "" if one.kind == "block" else write_tokens_apart(code[one.first : self._head_end(one) + 1])
        self._lines.append(f"{self._regions.line(one.first)}{'do' if one.kind == 'do' else head} {{")
        self._sequence(one.body)
        if one.other:
            self._lines.append("} else {")
            self._sequence(one.other)
        closing = write_tokens_apart(code[one.heads[0][0] - 2 : one.last + 1]) if one.kind == "do" else ""
        self._lines.append(f"}} {closing}")

    @staticmethod
    def _head_end(one: Statement) -> int:
        return one.heads[-1][1] + 1

    def _check_head(self, one: Statement) -> None:
        """Refuse a `for` whose counter is not the same for all threads."""
        names = self._names
        declared = names.scopes.declared.get(one.first, ())
        start, _, step = one.heads
        is_start = start[0] > start[1] or (declared and all(v in names.uniform for v in declared))
        if not is_start and not names.is_assignment_list(*start):
            raise NotUnderstoodError("a loop around a barrier that begins differently in each thread", one.first)
        if step[0] <= step[1] and not names.is_assignment_list(*step):
            raise NotUnderstoodError("a loop around a barrier that goes on differently in each thread", one.first)

    def _verbatim(self, first: int, last: int) -> None:
        self._lines.append(self._regions.line(first) + write_tokens_apart(self._code[first : last + 1]))

    # ---- variables

    def _declaration(self, one: Statement, run: list[Item]) -> list[Item]:
        names = self._names
        texts = {self._code[at].text for item in run for at in range(item.first, item.last + 1)}
        returns = "return" in texts
        if texts & {variable.name for variable in names.scopes.declared[one.first]}:
            run, returns = self._flush(run), False  # which meant something else by that name
        for variable in names.scopes.declared[one.first]:
            if variable.is_shared:
                self._lines.append(self._regions.line(one.first) + self._shared(variable))
            elif variable in names.uniform:
                if returns:
                    run, returns = self._flush(run), False
                self._lines.append(self._regions.line(one.first) + declare(variable))
            elif variable not in names.again:
                run = [*run, Item(first=one.first, last=one.last, variable=variable)]
        return run

    def _shared(self, variable: Variable) -> str:
        """Return shared memory: on the stack, or where it was if that may be another time round.

        Atomics know shared memory by its place.
        """
        if any(token.text.startswith("atomic") for token in self._code):
            return declare(variable)
        if variable.says("extern") or variable.initializer or variable.end < len(self._code) - 1:
            return declare(variable)
        words = tuple(token for token in variable.specifiers if token.text not in ("__shared__", "static"))
        name = write_tokens_apart((*variable.pointer, self._code[variable.at], *variable.dimensions))
        return f"alignas(64) {write_tokens_apart(words)} {name};"

    # ---- what each thread does by itself

    def _is_guard(self, run: Sequence[Item]) -> bool:
        return self._has_guards and not self._gone and len(run) == 1 and run[0].variable is None

    def _stride(self, one: Statement, run: Sequence[Item]) -> Stride | None:
        """Return how a loop steps, if its turns may stand outside: nothing before it has to stay in its region."""
        stride = find_stride(self._names, one) if self._turns and one.kind in ("for", "while") else None
        own = [item.variable for item in run if item.variable]
        is_cut = any(not self._regions.can_keep(v) and self._regions.crosses(v, run[-1].last) for v in own)
        return None if is_cut else stride

    def _walk(self, one: Statement, stride: Stride) -> None:
        assert self._turns is not None  # it found the stride
        walked = self._turns.write(stride)
        if self._gone:
            by_thread = self._regions.write([Item(first=one.first, last=one.last)], is_checked=True)
            walked = ["if (__jitload_gone_count == 0) {", *walked, "} else {", *by_thread, "}"]
        self._lines += walked

    def _flush(self, run: list[Item]) -> list[Item]:
        if run:
            for item in run:
                if item.variable and self._regions.crosses(item.variable, run[-1].last):
                    self._lines.append(self._regions.keep(item.variable))
            returns = self._regions.returns(run)
            guard = find_guard(self._names, run[0].first, run[0].last) if self._is_guard(run) else None
            if guard is not None:
                self._lines += self._regions.write_guarded(run[0], guard)
            elif self._gone:
                self._lines.append("if (__jitload_gone_count == 0) {")
                self._lines += self._regions.write(run, is_checked=False)
                self._lines.append("} else {")
                self._lines += self._regions.write(run, is_checked=True)
                self._lines.append("}")
            else:
                self._lines += self._regions.write(run, is_checked=False)
            if returns:
                self._gone = True
                self._lines.append("if (__jitload_gone_count == __jitload_count) return;")
        return []
