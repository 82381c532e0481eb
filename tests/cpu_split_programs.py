"""Random kernels with barriers, free of races: the text of one from a number.

Between two barriers a kernel either writes its thread's own element of shared memory or reads those of others. All
numbers are unsigned, so that nothing is undefined.
"""

from __future__ import annotations

import random

BLOCK = (8, 3)
THREADS = 24
VOTED = """
__device__ unsigned voted(unsigned value) {
  unsigned name = value * 3, v1 = 0;
  for (int i = 1; i < 4; i *= 2) v1 += __ballot_sync(0xffffffffu, name & i);
  __syncthreads();
  return v1;
}
"""
_OPERATORS = ("+", "*", "^", "-", "|", "&")


class Program:
    """Makes one kernel."""

    def __init__(self, seed: int, name: str) -> None:
        self._random = random.Random(seed)
        self._name = name
        self._uniform = ["n", "blockIdx.x"]
        self._thread = ["r"]
        self._assignable: list[str] = []
        self._counters: list[str] = []
        self._count = 0
        self._may_read = False
        self._depth = 0

    def text(self) -> str:
        """Return the kernel."""
        body = "".join(self._part() for _ in range(self._pick(6) + 2))
        result = " + ".join(f"{name} * {3 + at}u" for at, name in enumerate(self._thread + self._uniform))
        return (
            f'extern "C" __global__ void {self._name}(const unsigned* x, unsigned* y, unsigned n) {{\n'
            "  const unsigned r = threadIdx.y * blockDim.x + threadIdx.x;\n"
            f"  __shared__ unsigned s[{THREADS}];\n  s[r] = r;\n{body}"
            f"  y[blockIdx.x * {THREADS} + r] = {result};\n}}\n"
        )

    def _pick(self, below: int) -> int:
        return self._random.randrange(below)

    def _one(self, of: list[str] | tuple[str, ...]) -> str:
        return of[self._pick(len(of))]

    def _fresh(self, prefix: str) -> str:
        self._count += 1
        return f"{prefix}{self._count}"

    def _value(self) -> str:
        """Return an expression that may differ from thread to thread."""
        one, place = self._one(self._thread), f"({self._one(self._thread)} + {self._pick(9)}u) % {THREADS}"
        kinds = [
            f"{self._pick(50)}u",
            f"x[{place}]",
            f"s[{place}]" if self._may_read else "s[r]",
            self._one(("threadIdx.x", "threadIdx.y", *self._uniform)),
            one,
        ]
        if self._pick(3):
            return kinds[self._pick(len(kinds))]
        if self._pick(2):
            return f"({self._value()} {self._one(_OPERATORS)} {one})"
        return f"({self._value()} % 3 ? {one} : {self._one(self._uniform)})"

    def _same(self) -> str:
        """Return an expression that all threads agree on."""
        left = self._one(self._uniform)
        return (left, f"({left} + {self._pick(5)}u)", f"{left} * {self._pick(4)}u", f"(unsigned)(blockDim.x - {left})")[
            self._pick(4)
        ]

    def _barrier(self) -> str:
        self._may_read = self._pick(2) == 0
        return "  __syncthreads();\n"

    def _part(self) -> str:
        """Return statements between barriers, or something that holds some and a barrier behind it."""
        kinds = [self._plain, self._plain, self._plain, self._barrier, self._uniform_variable, self._leave, self._vote]
        if self._depth < 2:
            kinds += [self._loop, self._loop, self._branch, self._while]
        kind = self._pick(len(kinds))
        text = kinds[kind]()
        return text + self._barrier() if kind > 6 else text

    def _block(self) -> str:
        """Return the inside of a loop or a branch: threads meet first and last, and names end with it."""
        kept = (list(self._uniform), list(self._thread), list(self._assignable))
        self._depth += 1
        inside = self._barrier() + "".join(self._part() for _ in range(self._pick(4) + 1)) + self._barrier()
        self._depth -= 1
        self._uniform, self._thread, self._assignable = kept
        return inside

    def _loop(self) -> str:
        name = self._fresh("i")
        self._uniform.append(name)
        inside = self._block()
        if self._pick(3) == 0:
            inside += f"  if ({name} + {self._same()} > {self._pick(5)}u) {self._one(('break', 'continue'))};\n"
        self._uniform.remove(name)
        return (
            f"  for (unsigned {name} = {self._pick(2)}; {name} < {self._pick(4)} + n % 2; ++{name}) {{\n{inside}  }}\n"
        )

    def _while(self) -> str:
        name = self._fresh("w")
        inside = self._block()
        step = f"  {name} /= 2;\n"
        if self._pick(2):
            return f"  unsigned {name} = {self._pick(9)};\n  while ({name} > 0) {{\n{inside}{step}  }}\n"
        return f"  unsigned {name} = {self._pick(9)};\n  do {{\n{step}{inside}  }} while ({name} > 1);\n"

    def _branch(self) -> str:
        head = f"  if ({self._same()} % {self._pick(3) + 1}u == 0) {{\n"
        first, second = self._block(), self._block()
        return f"{head}{first}  }} else {{\n{second}  }}\n" if self._pick(2) else f"{head}{first}  }}\n"

    def _uniform_variable(self) -> str:
        changeable = [name for name in self._uniform if name.startswith("u")]
        if changeable and self._pick(2):
            return f"  {self._one(changeable)} {self._one(('=', '+=', '*='))} {self._same()};\n"
        name, value = self._fresh("u"), self._same()
        self._uniform.append(name)
        return f"  {self._one(('unsigned', 'auto', 'size_t'))} {name} = {value};\n"

    def _leave(self) -> str:
        if self._depth == 0 and self._pick(2) == 0:
            return f"  if ({self._value()} % 11 == {self._pick(11)}) {{ y[blockIdx.x * {THREADS} + r] = 7; return; }}\n"
        return f"  if ({self._same()} == 1000) return;\n"

    def _vote(self) -> str:
        if not self._assignable:
            return self._barrier()
        value, left, right = self._one(self._assignable), self._value(), self._value()
        kinds = (
            f"__ballot_sync(~0u, {left} & 4)",
            f"__any_sync(0xffffffffu, {left} % 5 == 1)",
            f"(__all_sync(~0u, {left} % 7) + __shfl_up_sync(~0u, {right}, 0))",
            f"voted({left})",
        )
        return f"  {value} {self._one(('=', '^=', '+='))} {self._one(kinds)} * 3 + {self._one(self._thread)};\n"

    def _plain(self) -> str:
        if not self._assignable or self._pick(4) == 0:
            return self._thread_variable()
        name, value, other = self._one(self._assignable), self._value(), self._value()
        fresh, other_name = self._fresh("p"), next((v for v in self._assignable if v != name), "q")
        kinds = [
            f"{name} {self._one(('=', '+=', '^='))} {value};",
            f"for (unsigned j = 0; j < {value} % 5; ++j) {{ if (j == 3) break; {name} += j * {other}; }}",
            f"unsigned* {fresh} = &{name}; *{fresh} += {value};",
            f"unsigned {fresh}[3] = {{{value}, 2}}; {fresh}[{other} % 3] += 5; {name} ^= {fresh}[r % 3];",
            f"if ({value} & 1) {name} = {other}; else ++{name};",
            f"{{ unsigned {other_name} = x[{self._pick(9)}]; {name} += {other_name}; }}",
            f"{name} += 1;" if self._may_read else f"s[r] = {value};",
        ]
        return f"  {self._one(kinds)}\n"

    def _thread_variable(self) -> str:
        name, value = self._fresh("v"), self._value()
        self._thread.append(name)
        if self._pick(3) == 0:
            return f"  const unsigned {name} = {value};\n"
        self._assignable.append(name)
        return f"  unsigned {name} = {value};\n"


def random_source(seed: int, kernels: int) -> str:
    """Make a source of several kernels."""
    return VOTED + "".join(Program(seed * kernels + number, f"k{number}").text() for number in range(kernels))
