"""A stretch of a kernel between two barriers in, the loop over the block's threads out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from jitload.cpptext.lexer import Token
from jitload.cpu.split_declarations import Variable
from jitload.cpu.split_guards import Guard
from jitload.cpu.split_names import Names
from jitload.cpu.split_text import declare, write_tokens_apart, write_type
from jitload.cpu.split_tree import NotUnderstoodError

PREFIX = "__jitload_"
GIVE, GOT = "__jitload_give", "__jitload_got"  # begin the names of what a lane gives in an exchange, and gets
_MOST_LARGE = 8  # arrays of up to 128 KiB each
_MOST = 96  # arrays of any size: most take 8 KiB at most
LOOP = """\
for (size_t __jitload_z = 0; __jitload_z < __jitload_depth; ++__jitload_z)
for (size_t __jitload_y = 0; __jitload_y < __jitload_height; ++__jitload_y) {
const size_t __jitload_row = (__jitload_z * __jitload_height + __jitload_y) * __jitload_width;
"""
EACH = "for (size_t __jitload_x = 0; __jitload_x < __jitload_width; ++__jitload_x) {"
INDEX = "const uint3 threadIdx = {(unsigned)__jitload_x, (unsigned)__jitload_y, (unsigned)__jitload_z};"
# An integer divided by zero ends the launch with a message that names the thread.
_FAULT = """\
__jitload_fault->thread[0] = __jitload_x, __jitload_fault->thread[1] = __jitload_y;
__jitload_fault->thread[2] = __jitload_z;
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """A part of a region: a whole statement, or one variable of a declaration."""

    first: int
    last: int
    variable: Variable | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """What stands around the statements of a stretch.

    Attributes:
        before: In front of all loops.
        rows: In front of the loop over the threads of a row.
        thread: In front of a thread's statements.
        after: Behind them: what writes copies back.
        end: Behind all loops.
    """

    before: tuple[str, ...]
    rows: tuple[str, ...]
    thread: tuple[str, ...]
    after: tuple[str, ...]
    end: str


class Regions:
    """Writes the loops of one kernel.

    Args:
        names: What its names stand for.
        label: The source's name in messages.
        strangers: Whether anything in the source may look at a thread's index behind a word that is not known.
    """

    def __init__(self, names: Names, label: str, *, strangers: bool) -> None:
        self._names = names
        self._code = names.scopes.code
        self._label = label
        self._strangers = strangers
        self._numbers: dict[Variable, int] = {}  # of the array that holds a variable
        self._large = 0  # arrays of what may take much of the stack
        self._regions = 0

    def line(self, at: int) -> str:
        """Return the directive that names a token's line."""
        return f'\n#line {self._code[at].line} "{self._label}"\n'

    def keep_parameter(self, parameter: Variable) -> str:
        """Return the array that holds a parameter for each thread, and what fills it."""
        self._numbers[parameter] = len(self._numbers) + 1
        array, at = self.array(parameter), f"{PREFIX}i"
        return (
            f"__jitload_kept<__typeof__({parameter.name})> {array}[1024];\n"
            f"for (size_t {at} = 0; {at} < __jitload_count; ++{at}) {array}[{at}] = {parameter.name};"
        )

    def keep(self, variable: Variable) -> str:
        """Return the array that holds a variable for each thread."""
        if not self.can_keep(variable):
            raise NotUnderstoodError(f"{variable.name!r} lives across a barrier, and its type cannot be kept")
        self._large += bool(variable.dimensions) or not variable.is_builtin
        if self._large > _MOST_LARGE or len(self._numbers) >= _MOST:
            raise NotUnderstoodError("too many arrays live across barriers")
        self._numbers[variable] = len(self._numbers) + 1
        dimensions = write_tokens_apart(variable.dimensions)
        array = self.array(variable)
        if variable.name.startswith((GIVE, GOT)):  # a shuffle may read what lies behind the last warp
            return f"alignas(32) unsigned long long {array}[1056]; size_t {array}_size;"
        made = f"__jitload_kept<{write_type(variable)}> {array}[1024]{dimensions};"
        return f'{made}\nstatic_assert(sizeof({array}) <= 131072, "");'

    @staticmethod
    def can_keep(variable: Variable) -> bool:
        """Tell whether a variable's type can be an array's."""
        odd = ("static", "volatile", "extern", "auto", "decltype", "thread_local")
        return not variable.is_reference and not any(variable.says(word) for word in odd)

    def crosses(self, variable: Variable, last: int) -> bool:
        """Tell whether a variable that is declared in a region is wanted after its last token."""
        names = self._names
        if names.scopes.last_use(variable) > last or (names.is_escaped(variable) and not variable.is_reference):
            return True
        is_object = not (variable.is_builtin or variable.dimensions or variable.is_reference or variable.says("auto"))
        uses = [at for at, found in names.scopes.used(variable.at + 1, variable.end) if found is variable]
        return bool(uses) and (
            (is_object and not names.is_scalar_by_name(variable))
            or (bool(variable.dimensions) and any(self._code[at + 1].text != "[" for at in uses))
        )

    def returns(self, run: Sequence[Item]) -> bool:
        """Tell whether a thread may end in a stretch."""
        texts = [self._code[at].text for item in run for at in range(item.first, item.last + 1)]
        pairs = tuple(pairwise(texts))
        found = ("return", ";") in pairs
        if found and any(b == "[" and not (a.isidentifier() or a in ("]", ")")) for a, b in pairs):
            raise NotUnderstoodError("a lambda beside a return")
        return found

    def write(self, run: Sequence[Item], *, is_checked: bool) -> list[str]:
        """Return the loop; with `is_checked`, threads that have returned are left out."""
        self._regions += 1
        frame = self.frame(run)
        lines = [*frame.before, LOOP, *frame.rows, EACH, INDEX]
        if is_checked:
            lines.append("if (__jitload_gone[__jitload_row + __jitload_x]) continue;")
        body = [self.write_item(item) for item in run]
        label = f"{PREFIX}next_{self._regions}: ;" if self.returns(run) else ""
        return [*lines, *frame.thread, "{", *body, *frame.after, "}", label, "}}", frame.end]

    def write_guarded(self, item: Item, guard: Guard) -> list[str]:
        """Return the loop for a statement that the first threads of a row alone go through, and how many these are."""
        frame = self.frame([item])
        limit, body = (write_tokens_apart(self._code[first : last + 1]) for first, last in (guard.limit, guard.body))
        same = f"const auto& {guard.name} = {PREFIX}same_{guard.name};"
        thread = [line for line in frame.thread if line != same]
        kind = f"typedef __jitload_kept<__typeof__({limit})> __jitload_near_type;"
        near = f"const __jitload_near_type {guard.name} = (__jitload_near_type)__jitload_near;" if guard.name else ""
        return [
            f"if (__jitload_is_near({limit})) {{",
            f"const size_t __jitload_near = __jitload_within((unsigned)({limit}), 1024);",
            kind, *frame.before, LOOP, *frame.rows,
            "const size_t __jitload_ends = __jitload_near < __jitload_width ? __jitload_near : __jitload_width;",
            EACH.replace("__jitload_width", "__jitload_ends"), INDEX,
            near, *thread,
            "{", self.line(guard.body[0]), body, *frame.after, "}", "}}", frame.end, "} else {",
            *self.write([item], is_checked=False), "}",
        ]  # fmt: skip

    def frame(self, run: Sequence[Item]) -> Frame:
        """Return what stands around the statements of a stretch."""
        names = self._names
        own = [item.variable for item in run if item.variable]
        used = {v for item in run for _, v in self._used_by(item)}
        again = self._with_sources(used & names.again)
        used |= {v for one in again for _, v in names.scopes.used(*one.value)}
        outer = sorted((v for v in used if v in self._numbers and v not in own), key=lambda v: v.at)
        kept = [v for v in (*outer, *own) if v in self._numbers]
        same = self._same(used)
        places = [(item.first, item.last) for item in run]
        may_divide = any(names.may_divide(*place) for place in (*places, *(v.value for v in again)))
        thread = [_FAULT] if may_divide else []
        if self._strangers or any(names.may_ask_for_index(*place) for place in places):
            thread.append("__jitload_set(::threadIdx, threadIdx.x, threadIdx.y, threadIdx.z);")
        thread += [f"const auto& {v.name} = {PREFIX}same_{v.name};" for v in same]
        thread += [self._fetch(v, run) for v in outer]
        thread += [declare(v, is_constant=True) for v in sorted(again, key=lambda v: v.at)]
        return Frame(
            before=("__jitload_fault->has_thread = 1;",) if may_divide else (),
            rows=(
                *(f"auto* const {self.array(v)}_r = {self.array(v)} + {PREFIX}row;" for v in kept),
                *(f"const auto& {PREFIX}same_{v.name} = {v.name};" for v in same),
            ),
            thread=tuple(thread),
            after=tuple(self._put_back(v) for v in kept if self._is_kept_back(v, run)),
            end="__jitload_fault->has_thread = 0;" if may_divide else "",
        )

    def exchange(self, at: int) -> str:
        """Return the call that lets the lanes of each warp exchange what they give."""
        variables = [v for _, v in self._names.scopes.used(at, at + 10)]
        arrays = ", ".join(self.array(v) if v in self._numbers else v.name for v in variables)
        gone = (
            "(__jitload_gone_count ? __jitload_gone : nullptr)"
            if any(token.text == "return" for token in self._code)
            else "nullptr"
        )
        size = f"{self.array(variables[0])}_size"
        return f"__jitload_exchange_all({self._code[at + 2].text}, {arrays}, {gone}, __jitload_place, {size});"

    def array(self, variable: Variable) -> str:
        """Return the name of the array that holds a variable for each thread."""
        return f"{PREFIX}v{self._numbers[variable]}"

    def _is_copied(self, variable: Variable) -> bool:
        """Tell whether a region works on a copy, so that the variable may stay in a register."""
        by_value = variable.is_builtin or self._names.is_scalar_by_name(variable) or variable.at < 0
        return by_value and not variable.dimensions and not self._names.is_escaped(variable)

    def _used_by(self, item: Item) -> Iterator[tuple[int, Variable]]:
        if item.variable is None:
            yield from self._names.scopes.used(item.first, item.last)
        else:
            yield from self._names.scopes.used(*item.variable.value)
            yield item.variable.at, item.variable

    def _with_sources(self, wanted: set[Variable]) -> set[Variable]:
        """Return variables to be worked out again, and those that they come from."""
        found: set[Variable] = set()
        waiting = list(wanted)
        while waiting:
            one = waiting.pop()
            if one not in found:
                found.add(one)
                waiting += [v for _, v in self._names.scopes.used(*one.value) if v in self._names.again]
        return found

    def _is_kept_back(self, variable: Variable, run: Sequence[Item]) -> bool:
        """Tell whether a region has to write a copy back."""
        if not self._is_copied(variable):
            return False
        if any(item.variable is variable for item in run):
            return True
        if variable.is_builtin or variable.says("const"):
            return any(item.first <= at <= item.last for item in run for at in self._names.writes(variable))
        return True

    def _same(self, used: set[Variable]) -> list[Variable]:
        """Return what a thread may read and not write, so that the compiler refuses what was not seen to write."""
        own = (v for v in used & self._names.uniform if not (v.says("const") or v.says("constexpr")))
        return sorted(own, key=lambda v: (v.at, v.name))

    def _put_back(self, variable: Variable) -> str:
        array, name = self.array(variable), variable.name
        if name.startswith(GIVE):
            return f"__jitload_put({array}, __jitload_row + {PREFIX}x, {name}), {array}_size = sizeof {name};"
        return f"{array}_r[{PREFIX}x] = {name};"

    def _fetch(self, variable: Variable, run: Sequence[Item]) -> str:
        place = f"{self.array(variable)}_r[{PREFIX}x]"
        if variable.name.startswith(GOT):
            return f"const __jitload_slot {variable.name} = {{{self.array(variable)}, __jitload_row + {PREFIX}x}};"
        if not self._is_copied(variable):
            return f"auto& {variable.name} = {place};"
        if variable.at < 0 or not self._is_kept_back(variable, run):
            constant = "" if self._is_kept_back(variable, run) else "const "
            return f"{constant}auto {variable.name} = {place};"
        return f"{write_type(variable)} {variable.name} = {place};"

    def write_item(self, item: Item) -> str:
        """Write a part of a region."""
        variable = item.variable
        if variable is not None and variable.name.startswith(GIVE):
            return f"{self.line(item.first)}const auto {variable.name} {write_tokens_apart(variable.initializer)};"
        if variable is None:
            return self.line(item.first) + self._write_returns(self._code[item.first : item.last + 1])
        if variable not in self._numbers or self._is_copied(variable):
            return self.line(item.first) + declare(variable)
        reference = f"auto& {variable.name} = {self.array(variable)}_r[{PREFIX}x];"
        if not variable.initializer:
            return reference
        dimensions, value = write_tokens_apart(variable.dimensions), write_tokens_apart(variable.initializer)
        made = f"{write_type(variable)} {PREFIX}made{dimensions} {value};"
        return (
            f"{reference} {{ {made} __builtin_memcpy((void*)&{variable.name}, &{PREFIX}made, sizeof {PREFIX}made); }}"
        )

    def _write_returns(self, tokens: Sequence[Token]) -> str:
        """Write tokens; a thread that returns is gone from here on."""
        written, start = [], 0
        for at, token in enumerate(tokens):
            if token.text == "return" and at + 1 < len(tokens) and tokens[at + 1].text == ";":
                written.append(write_tokens_apart(tokens[start:at]))
                written.append(
                    "{ __jitload_gone[__jitload_row + __jitload_x] = 1; ++__jitload_gone_count; "
                    f"goto {PREFIX}next_{self._regions}; }}"
                )
                start = at + 2
        return " ".join((*written, write_tokens_apart(tokens[start:])))
