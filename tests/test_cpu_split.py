"""Kernels whose barriers become loops over the block: which are split, and that both forms compute the same."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from cpu_split_programs import BLOCK, THREADS, random_source
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import jitload
from jitload import Launch
from jitload.cpu.build import compile_for_cpu
from jitload.cpu.split import Split, split_expression, split_kernels
from jitload.device.kernels import DeviceSource
from jitload.device.source import find_candidates
from jitload.errors import CompileError
from jitload.settings import read_settings
from jitload.toolchain.host import find_compiler, find_ninja

KERNELS, EXAMPLES = 5, int(os.environ.get("JITLOAD_TEST_EXAMPLES", "2"))  # kernels in a source, and sources
FIBERS = ["-DJITLOAD_CPU_FIBERS"]
HEAD = 'extern "C" __global__ void k(int* x, int n) { int t = threadIdx.x; __shared__ int s[64];'


def split(source: str, *options: str) -> Split:
    return split_kernels([("k.cu", source)], find_candidates([source]), options)


def waits(source: str, path: Path) -> dict[str, bool]:
    """Compile, and tell which kernels need fibers; with -O1, as nothing of it runs."""
    found = read_settings()
    given = DeviceSource(name="k", pieces=(("k.cu", source),), cpu_flags=("-O1",))
    program = compile_for_cpu(given, find_compiler(found), None, find_ninja(found), path)
    return {symbol: can_wait for symbol, (_, can_wait) in program.rows.items()}


OWN = """
constexpr int kTen = 10;
__device__ int kept;
__device__ void change(int& m) { m = threadIdx.x; }
__device__ int wait(int a) { __syncthreads(); return a; }
__device__ int twice(int a) { if (a > 3) return 4; __syncthreads(); return a; }
__device__ int endless(int a) { __syncthreads(); int b = endless(a); return b; }
__device__ int counts(int a) { static int calls; __syncthreads(); return calls += a; }
__device__ int other(int a) { __syncthreads(); return a + kept; }
"""
# Bodies behind HEAD: the reason why they stay on the fibers.
REFUSED = {
    "if (t < 3) __syncthreads();": "a condition that threads may differ in: t < 3",
    "for (int i = t; i < n; ++i) __syncthreads();": "begins differently in each thread|differ in: i < n",
    "for (int i = 0; i < t; ++i) __syncthreads();": "differ in: i < t",
    "for (int i = 0; i < n; i += x[0]) __syncthreads();": "differ in: i < n",
    "for (int i = 0; i < x[0]; ++i) __syncthreads();": r"differ in: i < x \[ 0 \]",
    "for (int i = 0; i < *x; ++i) __syncthreads();": r"differ in: i < \* x",
    "for (int i = 0; i < n; ++i) { if (t == 3) ++i; __syncthreads(); }": "differ in: i < n",
    "int m = n; if (t == 3) m = 4; for (int i = 0; i < m; ++i) __syncthreads();": "differ in: i < m",
    "int m = n; int* p = &m; *p = t; for (int i = 0; i < m; ++i) __syncthreads();": "differ in: i < m",
    "int m = n; int& r = m; r = t; for (int i = 0; i < m; ++i) __syncthreads();": "differ in: i < m",
    "int m = n; auto f = [&] { m = t; }; f(); for (int i = 0; i < m; ++i) __syncthreads();": "differ in: i < m",
    "int m = n; change(m); for (int i = 0; i < m; ++i) __syncthreads();": "differ in: i < m",
    "int m = n; (m) = t; for (int i = 0; i < m; ++i) __syncthreads();": "differ in: i < m",
    "int m = n; (t > 2 ? m : n) = t; for (int i = 0; i < m; ++i) __syncthreads();": "differ in: i < m",
    "int m = n; (void)(t && m++); for (int i = 0; i < m; ++i) __syncthreads();": "differ in: i < m",
    "int m[1] = {n}; for (int i = 0; i < m[0]; ++i) __syncthreads();": "differ in: i < m",
    "n += t; for (int i = 0; i < n; ++i) __syncthreads();": "differ in: i < n",
    "bool b = t == 2; while (b) { __syncthreads(); b = false; }": "differ in: b",
    "for (int i = 0; i < n; ++i) { if (t == 3) break; __syncthreads(); }": "differ in: t == 3",
    "for (int i = 0; i < n; ++i) { if (t == 3) continue; __syncthreads(); }": "differ in: t == 3",
    "for (int i = 0; i < n; ++i) { switch (t) { case 1: continue; } __syncthreads(); }": "`continue` in a `switch`",
    "switch (n) { case 1: __syncthreads(); }": "no statement of its own",
    "int a = (__syncthreads(), t);": "no statement of its own",
    "again: __syncthreads(); if (--n > 0) goto again;": "a label",
    "int a = 3; { int a = 4; __syncthreads(); }": "'a' hides another variable",
    "struct { int v; } a; __syncthreads(); x[t] = a.v;": "a type of the kernel's own",
    "auto a = x[t]; __syncthreads(); x[t] = a;": "'a' lives across a barrier, and its type cannot be kept",
    "int& a = s[t]; a = 1; __syncthreads(); x[t] = a;": "'a' lives across a barrier, and its type cannot be kept",
    'printf("%d", t); __syncthreads();': "printf",
    "x[t] = __syncthreads_count(1); __syncthreads();": "__syncthreads_count",
    "x[t] = __match_any_sync(~0u, t); __syncthreads();": "__match_any_sync",
    "x[t] = __shfl_sync(3, t, 0);": "__shfl_sync with a mask that is not written out as full",
    "x[t] = __shfl_sync(n, t, 0);": "__shfl_sync with a mask that is not written out as full",
    "if (t < 8) x[t] = __shfl_sync(~0u, t, 0);": "differ in: t < 8",
    "if (__any_sync(~0u, t)) x[t] = 3;": "in a condition",
    "x[t] = t > 3 && __any_sync(~0u, t);": "__any_sync behind '&&'",
    "x[t] = t > 3 ? 2 : __shfl_sync(~0u, t, 0);": r"__shfl_sync behind '\?'",
    "auto f = [&] { return __any_sync(~0u, t); }; x[t] = f();": "where it may not be come to",
    "int a = t, b = wait(a); x[t] = b;": "wait behind ','",
    "x[t] = twice(t);": "a return in the middle of twice",
    "x[t] = counts(t);": "a static variable",
    "x[t] = endless(t);": "too many functions",
    "int kept = 3; x[t] = other(t);": "means something else in the kernel",
    "\n#if 1\n__syncthreads();\n#endif\n": "a preprocessor line in it",
    "[&] { __syncthreads(); }();": "no statement of its own",
    "decltype(t) a = 3; __syncthreads(); x[t] = a;": "a declaration that is not read",
    "[[maybe_unused]] int a = 3; __syncthreads(); x[t] = a;": "a declaration that is not read",
    "int (*a)[64] = &s; __syncthreads(); x[t] = (*a)[t];": "a declaration that is not read",
    "int kTen = 3; __syncthreads(); x[t] = kTen;": "'kTen' hides another name",
    "for (int i : {1, 2}) __syncthreads();": "a barrier in a `for` over a range",
    "if (int a = n; a > 2) __syncthreads();": "differ in: int a",
    "while (int a = n--) __syncthreads();": "differ in: int a",
    'asm(""); __syncthreads();': "'asm'",
    "if (t == 1) { auto f = [] { return; }; f(); return; } __syncthreads();": "a lambda beside a return",
}  # fmt: skip


@pytest.mark.parametrize("body", REFUSED)
def test_what_is_not_understood_stays_on_the_fibers(body: str) -> None:
    found = split(f"{OWN}\n{HEAD} {body} }}")
    assert not found.forms
    assert re.search(REFUSED[body], found.reasons["k"])


def test_a_name_that_several_kernels_share() -> None:
    found = split("__global__ void k(int* x) { __syncthreads(); } __global__ void k(float* x) { __syncthreads(); }")
    assert not found.forms
    assert found.reasons == {"k": "several kernels of this name"}


def test_a_template_with_a_specialization() -> None:
    kernel = "{}__global__ void k{}(int* x) {{ __syncthreads(); }}\n"
    found = split(kernel.format("template <class T> ", "") + kernel.format("template <> ", "<int>"))
    assert not found.forms
    assert found.reasons == {"k": "a template with a specialization, or with headers behind it"}


def test_a_source_without_a_barrier_is_left_as_it_is() -> None:
    pieces = (("k.cu", "__global__ void k(int* x) {}"),)
    assert split_kernels(pieces, find_candidates([pieces[0][1]])).pieces is pieces


def test_the_user_may_ask_for_fibers() -> None:
    assert not split(f"{HEAD} __syncthreads(); }}", "#define JITLOAD_CPU_FIBERS 1").forms


def test_expressions_of_second_forms() -> None:
    assert split_expression("a::b::k") == ("a::b::k", "a::b::__jitload_split_k")
    assert split_expression("k<float, 4>") == ("k", "__jitload_split_k<float, 4>")
    assert split_expression("static_cast<void(*)(int)>(k)") == ("", "")


SPLIT = f"{HEAD} s[t] = x[t]; __syncthreads(); x[t] = s[n - 1 - t]; }}"
# Sources whose second form is dropped by the compiler or by what its object file shows.
DROPPED = {
    "a barrier in a function": "template <int> __device__ void wait() { __syncthreads(); }\n"
    + SPLIT.replace("x[t] = s", "wait<3>(); x[t] = s"),
    "a barrier in a macro of a header": '#include "sync.h"\n'
    + SPLIT.replace("x[t] = s[n - 1 - t]", "WAIT(x[t] = s[n - 1 - t])"),
    "a name that is a macro": '#include "sync.h"\n' + SPLIT.replace("x[t] = s", "x[t] = 0 * threads + s"),
    "a macro with two definitions": "#if 0\n#define W 1\n#else\n#define W 2\n#endif\n"
    + SPLIT.replace("s[n", "W / 2 * s[n"),
    "a spin": SPLIT.replace("x[t] = s", "while (atomicAdd(&s[0], 0) < 0) {} x[t] = s"),
    "volatile": SPLIT.replace("__shared__ int", "__shared__ volatile int"),
    "a lambda without captures": SPLIT.replace("x[t] = s", "x[t] = 0 * [] { return (int)threadIdx.x; }() + s"),
    "a type that cannot be copied": "struct P { int v = 0; __device__ P() {} __device__ P(const P& p) : v(p.v) {} };\n"
    + SPLIT.replace("s[t] =", "P p; p.v = t; s[t] =").replace("s[n", "0 * p.v + s[n"),
}  # fmt: skip


@pytest.mark.parametrize("what", DROPPED)
def test_forms_that_are_dropped(what: str, tmp_path: Path) -> None:
    (tmp_path / "sync.h").write_text("#define WAIT(...) __syncthreads(); __VA_ARGS__\n#define threads threadIdx.x\n")
    source = DROPPED[what].replace("sync.h", str(tmp_path / "sync.h"))
    assert what == "volatile" or split(source).forms
    assert waits(source, tmp_path) == {"k": True}
    module = jitload.load_inline("dropped", cuda_sources=source, arch="cpu")
    x = torch.arange(16, dtype=torch.int32)
    module.k[1, 16](x, 16)
    assert torch.equal(x, torch.arange(16, dtype=torch.int32).flip(0))


def test_without_fibers(tmp_path: Path) -> None:
    assert waits(SPLIT, tmp_path) == {"k": False}


def load(path: Path, source: str, **options: Any) -> jitload.Module:
    (path / "k.cu").write_text(source)
    return jitload.load("k", sources=path / "k.cu", arch="cpu", **options)


def test_watched_kernels_stay_on_the_fibers(tmp_path: Path) -> None:
    module = load(tmp_path, SPLIT, sanitize="address")
    with pytest.raises(RuntimeError, match=r"in block \(0, 0, 0\), thread \(5, 0, 0\),\s+at .*k\.cu:1"):
        module.k[1, 16](torch.zeros(5, dtype=torch.int32), 16)


def test_errors_point_at_the_users_lines(tmp_path: Path) -> None:
    with pytest.raises(CompileError) as caught:
        load(tmp_path, SPLIT.replace("x[t] = s", "\nx[t] = wrong + s"))
    errors = [d for d in caught.value.diagnostics if d.severity == "error"]
    assert [(Path(d.file).name, d.line) for d in errors] == [("k.cu", 2)]
    assert "__jitload_" not in caught.value.log


def test_asserts_name_thread_and_line(tmp_path: Path) -> None:
    module = load(tmp_path, SPLIT.replace("x[t] = s", "\n\nassert(t < 7); x[t] = s"))
    with pytest.raises(RuntimeError, match=r"k\.cu:3: assertion `t < 7` failed in block .*, thread \(7, 0, 0\)"):
        module.k[1, 16](torch.zeros(16, dtype=torch.int32), 16)


SAME = (Path(__file__).parent / "cpu_kernels" / "barriers.cu").read_text()
NAMES = re.findall(r"__global__ void (\w+)", SAME)


@pytest.fixture(scope="module")
def both() -> list[jitload.Module]:
    return both_forms("same", SAME)


def both_forms(name: str, source: str) -> list[jitload.Module]:
    """Compile as loops, and as what they must be like: there nothing depends on how well that is compiled."""
    return [
        jitload.load_inline(name, cuda_sources=source, arch="cpu"),
        jitload.load_inline(name, cuda_sources=source, arch="cpu", extra_cuda_cflags=FIBERS, extra_cflags=["-O1"]),
    ]


def test_all_of_these_are_split(tmp_path: Path) -> None:
    assert split(SAME).reasons == {}
    assert {symbol for symbol, can_wait in waits(SAME, tmp_path).items() if can_wait} == set()


@pytest.mark.parametrize("name", NAMES)
def test_both_forms_agree(name: str, both: list[jitload.Module]) -> None:
    x = torch.arange(64, dtype=torch.int32) * 37 % 101
    results = []
    for module in both:
        y = torch.zeros(3 * 64, dtype=torch.int32)
        getattr(module, name)[3, (16, 4), 1024](x, y, 64)
        results.append(y)
    assert torch.equal(*results)
    assert name in ("k_uniform_return", "k_division") or results[0].any()


def test_templates_and_namespaces(tmp_path: Path) -> None:
    source = """
    namespace a::b {
    template <typename T, int N = 32>
    __global__ void __launch_bounds__(N) reverse(const T* x, T* y) {
      __shared__ T s[N];
      T own = x[threadIdx.x];
      s[threadIdx.x] = own;
      __syncthreads();
      y[threadIdx.x] = s[N - 1 - threadIdx.x] + own;
    }
    }"""
    functions = {
        "floats": Launch(grid=1, block=32, kernel="a::b::reverse<float>"),
        "longs": Launch(grid=1, block=16, kernel="a::b::reverse<long long, 16>"),
    }
    assert split(source).forms == {"a::b::reverse": "__JITLOAD_SPLIT_0"}
    module = jitload.load_inline("templates", cuda_sources=source, functions=functions, arch="cpu")
    for function, x in ((module.floats, torch.rand(32)), (module.longs, torch.arange(16))):
        y = torch.empty_like(x)
        function(x, y)
        assert torch.equal(y, x.flip(0) + x)


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate])
@given(seed=st.integers(0, 10**6))
def test_random_kernels_agree(seed: int) -> None:
    source = random_source(seed, KERNELS)
    found = split(source)
    assert found.reasons == {}
    modules = both_forms("random", source)
    x = torch.arange(THREADS, dtype=torch.int64).mul(2654435761).remainder(2**20).to(torch.uint32)
    for number in range(KERNELS):
        results = []
        for module in modules:
            y = torch.zeros(2 * THREADS, dtype=torch.uint32)
            getattr(module, f"k{number}")[2, BLOCK](x, y, 5)
            results.append(y.tolist())
        assert results[0] == results[1], f"k{number}"
