"""A loop with strides in, the text out in which its turns stand outside and the block's threads inside.

For each row of the block it is worked out first where each thread begins. Threads side by side that begin one behind
the other are a run; warps that each have a row of a matrix are one run each. A run goes through a turn together, its
counter counting through the threads, so that the compiler sees memory read in order; the last turn is shorter:

    for (long long at = starts[from]; at < limit; at += step) {
      const int end = min(limit, at + (to - from));
      size_t thread = from;
      for (int i = at; i < end; ++i, ++thread) sum[thread] += x[i];
    }

Threads that begin anywhere else, or whose counter would wrap, go through the loop as it was written.
"""

from __future__ import annotations

from collections.abc import Sequence

from jitload.cpu.split_names import Names
from jitload.cpu.split_region import EACH, INDEX, LOOP, Item, Regions
from jitload.cpu.split_strides import Range, Stride
from jitload.cpu.split_subscripts import Subscript, find_subscripts
from jitload.cpu.split_text import write_tokens_apart

_STARTS = """\
__jitload_counter __jitload_starts[1024];
long long __jitload_limits[1024], __jitload_differs = 0;"""
_RUNS = """\
for (size_t __jitload_from = 0, __jitload_to; __jitload_from < __jitload_width; __jitload_from = __jitload_to) {
__jitload_to = __jitload_run(__jitload_starts, __jitload_from, __jitload_width);"""
_SAME = "__jitload_to = __jitload_alike(__jitload_{}, __jitload_from, __jitload_to);"
_TURN = """\
if (__jitload_differs == 0 && __jitload_walks<__jitload_counter>(__jitload_threads, __jitload_below, __jitload_by)) {
for (long long __jitload_at = (long long)__jitload_starts[__jitload_from];
__jitload_at < __jitload_below; __jitload_at += __jitload_by) {
const __jitload_counter __jitload_end = (__jitload_counter)(
__jitload_below - __jitload_at < __jitload_threads ? __jitload_below : __jitload_at + __jitload_threads);
"""
_FIRST = (
    "const ptrdiff_t __jitload_first{0} = (ptrdiff_t)(__jitload_base{0} + __jitload_at - (long long)__jitload_from);"
)
_THREADS = """\
size_t __jitload_x = __jitload_from;
for (__jitload_counter __jitload_i = (__jitload_counter)__jitload_at;
__jitload_i < __jitload_end; ++__jitload_i, ++__jitload_x) {"""
_BY_THREAD = """\
} else for (size_t __jitload_x = __jitload_from; __jitload_x < __jitload_to; ++__jitload_x) {"""


class Turns:
    """Writes the loops with strides of one kernel.

    Args:
        names: What its names stand for.
        regions: What writes the loops between its barriers.
    """

    def __init__(self, names: Names, regions: Regions) -> None:
        self._names = names
        self._code = names.scopes.code
        self._regions = regions
        self.places: set[int] = set()  # of the loops that were written
        self.shared: set[int] = set()  # of those that all threads go through together

    def write(self, stride: Stride) -> list[str]:
        """Return the loops over turns and threads."""
        self.places.add(stride.first)
        item = Item(first=stride.first, last=stride.last)
        frame, line = self._regions.frame([item]), self._regions.line(stride.first)
        subscripts = find_subscripts(self._names, stride)
        own = [number for number, one in enumerate(subscripts) if not one.is_uniform]
        begin = f"{line}__jitload_starts[__jitload_x] = ({self._text(stride.start) or stride.name});"
        reaches = str(stride.reaches).lower()
        limit = f"__jitload_limit({self._text(stride.limit)}, {reaches}, __jitload_starts[{{}}])"
        each_limit = f"__jitload_limits[__jitload_x] = {limit.format('__jitload_x')};"
        has_limits = stride.has_own_limit or own
        below = "__jitload_limits[__jitload_from]" if has_limits else limit.format("__jitload_from")
        return [
            *frame.before, LOOP, *frame.rows, f"typedef __jitload_kept<{stride.type}> __jitload_counter;", _STARTS,
            *(f"long long __jitload_firsts{number}[1024];" for number in own),
            EACH, INDEX, *frame.thread, "{", begin, each_limit if has_limits else "",
            *(self._own_place(stride, subscripts[number], number) for number in own), "}}",
            _RUNS, *(_SAME.format(f"firsts{number}") for number in own), _SAME.format("limits") if has_limits else "",
            "const long long __jitload_threads = (long long)(__jitload_to - __jitload_from);",
            f"{line}const long long __jitload_below = {below};",
            f"const long long __jitload_by = __jitload_step({self._text(stride.step)});",
            *(self._place(stride, one, number) for number, one in enumerate(subscripts)),
            _TURN, *(_FIRST.format(number) for number in range(len(subscripts))),
            _THREADS, INDEX, *frame.thread, *self._turn(stride, subscripts, frame.after), "}}", *self._behind(stride),
            _BY_THREAD, INDEX, *frame.thread, "{", self._regions.write_item(item), *frame.after, "}}}}", frame.end,
        ]  # fmt: skip

    def _place(self, stride: Stride, one: Subscript, number: int) -> str:
        """Return what finds where a subscript begins, less the counter, and whether it wraps on its way."""
        if not one.is_uniform:
            return f"const long long __jitload_base{number} = __jitload_firsts{number}[__jitload_from];"
        start, last = "__jitload_starts[__jitload_from]", "__jitload_below - 1"
        return (
            f"long long __jitload_base{number};\n{self._bases(stride, one, f'__jitload_base{number}', (start, last))}"
        )

    def _own_place(self, stride: Stride, one: Subscript, number: int) -> str:
        """Return the same for a thread."""
        ends = ("__jitload_starts[__jitload_x]", "__jitload_limits[__jitload_x] - 1")
        return self._bases(stride, one, f"__jitload_firsts{number}[__jitload_x]", ends)

    def _bases(self, stride: Stride, one: Subscript, to: str, ends: tuple[str, str]) -> str:
        line, place = self._regions.line(one.places[0][0]), f"(long long)({one.text}) - (long long){stride.name}"
        first, last = (f"const {stride.type} {stride.name} = (__jitload_counter)({end});{line}" for end in ends)
        return f"{{ {first}{to} = {place}; }}\n{{ {last}__jitload_differs |= {to} ^ ({place}); }}"

    def _turn(self, stride: Stride, subscripts: Sequence[Subscript], after: Sequence[str]) -> list[str]:
        counter = f"const {stride.type} {stride.name} = __jitload_i;"
        body = f"{self._regions.line(stride.body[0])}{self._body(stride, subscripts)}"
        if stride.counter is not None:
            own = f"{self._regions.array(stride.counter)}_r["
            after = [line for line in after if not line.startswith(own)]
        return ["{", f"{{ {counter} do {{{body}\n}} while (0); }}", *after, "}"]

    def _body(self, stride: Stride, subscripts: Sequence[Subscript]) -> str:
        """Write a turn with the elements found from where the first thread's is."""
        places = sorted((place, number) for number, one in enumerate(subscripts) for place in one.places)
        written, at = [], stride.body[0]
        for (first, last), number in places:
            written.append(f"{self._text((at, first - 1))}__jitload_first{number} + (ptrdiff_t)__jitload_x")
            at = last + 1
        return "".join((*written, self._text((at, stride.body[1]))))

    def _behind(self, stride: Stride) -> list[str]:
        """Return what gives a counter that outlives the loop its last value."""
        if stride.counter is None:
            return []
        place = f"{self._regions.array(stride.counter)}_r[__jitload_x]"
        last = "__jitload_behind((long long)__jitload_starts[__jitload_x], __jitload_below, __jitload_by)"
        each = "for (size_t __jitload_x = __jitload_from; __jitload_x < __jitload_to; ++__jitload_x)"
        return [f"{each} {place} = (__jitload_counter){last};"]

    def _text(self, place: Range) -> str:
        return write_tokens_apart(self._code[place[0] : place[1] + 1])
