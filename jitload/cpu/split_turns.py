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
from jitload.cpu.split_text import write_tokens_apart

_TURN = """\
for (long long __jitload_at = (long long)__jitload_starts[__jitload_from];
__jitload_at < __jitload_below; __jitload_at += __jitload_by) {
const __jitload_counter __jitload_end = (__jitload_counter)(
__jitload_below - __jitload_at < __jitload_threads ? __jitload_below : __jitload_at + __jitload_threads);
size_t __jitload_x = __jitload_from;
for (__jitload_counter __jitload_i = (__jitload_counter)__jitload_at;
__jitload_i < __jitload_end; ++__jitload_i, ++__jitload_x) {"""
_RUNS = """\
for (size_t __jitload_from = 0, __jitload_to; __jitload_from < __jitload_width; __jitload_from = __jitload_to) {"""
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

    def write(self, stride: Stride) -> list[str]:
        """Return the loops over turns and threads."""
        self.places.add(stride.first)
        item = Item(first=stride.first, last=stride.last)
        frame, line = self._regions.frame([item]), self._regions.line(stride.first)
        begin = f"{line}__jitload_starts[__jitload_x] = ({self._text(stride.start) or stride.name});"
        each_limit, limits, limit = "", "(const long long*)nullptr", self._limit(stride, "__jitload_from")
        if stride.has_own_limit:
            each_limit = f"__jitload_limits[__jitload_x] = {self._limit(stride, '__jitload_x')};"
            limits, limit = "__jitload_limits", "__jitload_limits[__jitload_from]"
        return [
            *frame.before, LOOP, *frame.rows, f"typedef __jitload_kept<{stride.type}> __jitload_counter;",
            "__jitload_counter __jitload_starts[1024];",
            "long long __jitload_limits[1024];" if stride.has_own_limit else "",
            EACH, INDEX, *frame.thread, "{", begin, each_limit, "}}",
            _RUNS, f"__jitload_to = __jitload_run(__jitload_starts, {limits}, __jitload_from, __jitload_width);",
            "const long long __jitload_threads = (long long)(__jitload_to - __jitload_from);",
            f"{line}const long long __jitload_below = {limit};",
            f"const long long __jitload_by = __jitload_step({self._text(stride.step)});",
            "if (__jitload_walks<__jitload_counter>(__jitload_threads, __jitload_below, __jitload_by)) {",
            _TURN, INDEX, *frame.thread, *self._turn(stride, frame.after), "}}", *self._behind(stride),
            _BY_THREAD, INDEX, *frame.thread, "{", self._regions.write_item(item), *frame.after, "}}}}", frame.end,
        ]  # fmt: skip

    def _limit(self, stride: Stride, thread: str) -> str:
        reaches = str(stride.reaches).lower()
        return f"__jitload_limit({self._text(stride.limit)}, {reaches}, __jitload_starts[{thread}])"

    def _turn(self, stride: Stride, after: Sequence[str]) -> list[str]:
        counter = f"const {stride.type} {stride.name} = __jitload_i;"
        body = f"{self._regions.line(stride.body[0])}{self._text(stride.body)}"
        if stride.counter is not None:
            own = f"{self._regions.array(stride.counter)}_r["
            after = [line for line in after if not line.startswith(own)]
        return ["{", f"{{ {counter} do {{{body}\n}} while (0); }}", *after, "}"]

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
