"""Candidates that break things, by families: each is a Python file that has to write x + 1 to y. And their judge."""

import random
import textwrap
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch

import jitload
from jitload.judging.judge import Judge

MARK = "86399"  # of the processes that candidates leave behind: they sleep for so many seconds

KERNELS = r"""
extern "C" __global__ void store(float* y, long long index) { y[index + threadIdx.x] = 1; }
extern "C" __global__ void spin(volatile float* y) { do y[0] = 0; while (y[0] < 1e30f); }
__device__ __noinline__ float deeper(volatile float* y, int n) {
    volatile float place[256]; place[n & 255] = y[0]; return n < 0 ? 0 : deeper(y, n + 1) + place[n & 255];
}
extern "C" __global__ void recurse(float* y, int n) { y[0] = deeper(y, n); }
extern "C" __global__ void chatter(float* y, int n) { for (int i = 0; i < n; ++i) printf("%0512d\n", i); }
"""


def make_judge(**options: object) -> Judge:
    inputs = lambda: (torch.rand(1000), torch.empty(1000))  # noqa: E731
    options = {"timeout": 3, "memory": "600MB", "seconds": 0, **options}
    return jitload.Judge(reference=lambda x, y: x + 1, inputs=inputs, **options)


class Hostile(NamedTuple):
    """A candidate, and the stages that are right for it."""

    name: str
    source: str
    stages: tuple[str, ...]


def _body(text: str, *, right: bool = False, top: str = "") -> str:
    body = textwrap.indent(textwrap.dedent(text).strip(), "    ")
    end = "\n    y.numpy()[:] = x.numpy() + 1" if right else ""
    imports = "import ctypes, gc, mmap, os, signal, subprocess, sys, threading, time\nimport numpy, torch\n"
    return f"{imports}{textwrap.dedent(top)}\ndef f(x, y):\n{body}{end}\n"


def _kernel(call: str, *, right: bool = False) -> str:
    top = f"import jitload\nmod = jitload.load_inline('hostile', cuda_sources={KERNELS!r}, arch='cpu')\n"
    return _body(call, right=right, top=top)


def _frame(answer: str) -> str:
    return f"os.write(800, {answer.encode()!r})"


_VALUES = ("1", "x[:5]", "(x, y)", "x.double()", "None", "object()", "[]", "x * 0")
_AIM = ("memory", "launch", "wrong", "cheat")  # where a random address happens to be mapped
_SLEEP = f"os.execvp('sleep', ['sleep', '{MARK}'])"
_DETACH = f"if os.fork() == 0:\n    os.setsid()\n    os.fork() and os._exit(0)\n    {_SLEEP}"
_ONCE = "if not os.path.exists('done'):\n    open('done', 'w').close()\n"
Make = Callable[[int, random.Random], str]

# Each family makes its candidate number n.
FAMILIES: dict[str, tuple[tuple[str, ...], Make]] = {
    "null_write": (("memory",), lambda n, r: _body(f"ctypes.memset({8 * n}, 1, {r.randint(1, 4000)})")),
    "wild_write": (_AIM, lambda n, r: _body(f"ctypes.memset({r.randint(1 << 16, 1 << 47)}, 1, 4096)")),
    "kernel_address": (("memory",), lambda n, r: _kernel(f"mod.store[1, 32](y, {r.randint(1 << 44, 1 << 45)})")),
    "kernel_overflow": (("memory",), lambda n, r: _kernel(f"mod.store[1, 8](y, {r.choice([-9, -500, 1001, 1500])})")),
    "kernel_recursion": (("memory", "launch"), lambda n, r: _kernel(f"mod.recurse[1, 1](y, {n})")),
    "kernel_printf": (("ok",), lambda n, r: _kernel(f"mod.chatter[1, 1](y, {20_000 + n})", right=True)),
    "endless": (("hang",), lambda n, r: r.choice([
        _body("while True: pass"),
        _body("time.sleep(1000)"),
        _body("lock = threading.Lock(); lock.acquire(); lock.acquire()"),
        _body("os.kill(os.getpid(), signal.SIGSTOP)"),
        _body("signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))\nwhile True: pass"),
        _body("pass", top="while True: time.sleep(1)"),
        _kernel("mod.spin[1, 1](y)"),
    ])),
    "daemon": (("ok",), lambda n, r: _body(_ONCE + textwrap.indent(_DETACH, "    "), right=True)),
    "orphans": (("memory", "launch", "hang"), lambda n, r: _body(
        f"for _ in range(99):\n{textwrap.indent(_DETACH, '    ')}\ntime.sleep(99)")),
    "bomb": (("memory", "launch", "hang"), lambda n, r: _body(f"while True: subprocess.Popen(['sleep', '{MARK}'])")),
    "exit": (("launch", "load"), lambda n, r: r.choice([
        _body(f"os._exit({n % 256})"),
        _body(f"sys.exit({n % 256})"),
        _body("pass", top=f"os._exit({n % 256})"),
        _body("pass", top="raise SystemExit"),
        _body("os.abort()"),
        _body(f"os.kill(os.getpid(), {r.choice([1, 2, 3, 6, 14, 15])}); time.sleep(100)"),
    ])),
    "group": (("memory",), lambda n, r: _body("os.killpg(0, signal.SIGKILL)")),
    "descriptors": (("launch", "cheat", "hang"), lambda n, r: _body(  # its process does not end at once
        f"os.closerange({r.randint(0, 800)}, 4096)\ntime.sleep({r.choice([0, 100])})")),
    "forged": (("cheat", "wrong"), lambda n, r: _body(r.choice([
        f"os.write(800, os.urandom({r.randint(4, 4000)}))\ntime.sleep(100)",
        _frame("[]"),
        _frame('{"us": 1, "is_ordered": true, "has_results": false}'),
        _frame('{"stage": "ok", "reason": "right"}'),
        _frame('{"us": -1, "has_results": 1}'),
    ]))),
    "shrink": (("launch",), lambda n, r: _body(f"os.ftruncate(801, {n})")),
    "gigabytes": (("memory", "hang"), lambda n, r: _body(r.choice([  # where filling memory takes long
        "a = [bytearray(1 << 26) for _ in range(1000)]",
        "a = torch.empty(1 << 33, dtype=torch.uint8).fill_(1)",
        "a = mmap.mmap(-1, 1 << 33)\nwhile True: a.write(bytes(1 << 24))",
    ]))),
    "recursion": (("launch", "memory", "hang"), lambda n, r: _body("_again(0)",
        top=f"sys.setrecursionlimit({r.choice([1000, 10**8])})\ndef _again(n): return _again(n + 1) + 1")),
    "printing": (("ok",), lambda n, r: _body(f"print('x' * {10_000_000 + n}, flush=True)", right=True)),
    "endless_printing": (("hang", "launch"), lambda n, r: _body("while True: os.write(1, bytes(1 << 20))")),
    "errors": (("launch",), lambda n, r: _body(
        r.choice(["raise KeyboardInterrupt", "raise GeneratorExit", "raise Odd", "assert False", "1 / 0"]),
        top="class Odd(BaseException):\n    def __str__(self): raise ValueError\n    __repr__ = __str__")),
    "results": (("wrong",), lambda n, r: _body(f"return {r.choice(_VALUES)}")),
    "files": (("ok",), lambda n, r: _body(
        "import tempfile\nopen(tempfile.mktemp(), 'wb').write(bytes(1 << 20))", right=True)),
    "threads": (("ok",), lambda n, r: _body(
        f"threading.Thread(target=time.sleep, args=({MARK},)).start()", right=True)),
    "syntax": (("compile",), lambda n, r: "def f(x, y):\n    return (" + "(" * (n % 50)),
    "imports": (("load",), lambda n, r: r.choice(["import nothing_like_this", "import os", "def f(x): 1\ndef g(): 2"])),
}  # fmt: skip


def hostile_candidates(count: int) -> Iterator[Hostile]:
    """Yield candidates of all families in turn."""
    families = [*FAMILIES.items()]
    for number in range(count):
        name, (stages, make) = families[number % len(families)]
        round_number = number // len(families)
        text = make(round_number, random.Random(number))
        yield Hostile(f"{name}_{round_number}", text, stages)
