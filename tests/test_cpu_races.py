"""`sanitize="race"`: planted races are found with both lines and both threads, and kernels without races are quiet."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from cpu_cases import CASES, SOURCES
from support.headers import SANITIZED

import jitload

# Each body has its two accesses in the lines marked A and B. `t` is the thread, `b` the block, and `s` shared memory.
# One line has both marks if both accesses are in it.
PLANTED = {
    "no_barrier": "s[t] = x[t]; //A\n y[t] = s[63 - t]; //B",
    "neighbour": "s[t] = t; //A\n if (t > 0) y[t] = s[t - 1]; //B",
    "some_lanes": "if (t < 3) y[t] = s[0]; //A\n if (t < 4 && t != 2) __syncwarp(0xb); if (t == 3) s[0] = 1; //B",
    "reduction": "s[t] = t; __syncthreads();\n for (int k = 32; k > 0; k /= 2) if (t < k) s[t] += s[t + k]; //A //B\n",
    "broadcast": "if (t == 0) s[0] = x[0]; //A\n y[t] = s[0]; //B",
    "late_warp": "__syncthreads(); __syncthreads(); y[t] = s[0]; //A\n __syncwarp(); if (t == 40) s[0] = 1; //B",
    "same_word": "s[0] = t; //A //B\n __syncthreads(); y[t] = s[0];",
    "counter": "x[b] += 1; //A //B",
    "block_halo": "x[b * 64 + t] = t; //A\n y[b * 64 + t] = x[(b * 64 + t + 1) % 128]; //B",
    "no_syncwarp": "s[t] = t; //A\n y[t] = s[t ^ 1]; //B",
    "two_warps": "__syncwarp(); if (t == 31) s[0] = 1; //A\n if (t == 32) y[0] = s[0]; //B",
    "atomic_and_write": "atomicAdd(&s[0], 1); //A\n if (t == 9) s[0] = 0; //B",
    "atomic_and_read": "atomicAdd(&s[0], 1); //A\n y[t] = s[0]; //B",
    "zeroed_first": "if (t == 0) s[0] = 0; //A\n atomicAdd(&s[0], 1); //B",
    "global_zeroed": "if (t == 0) x[0] = b; //A\n atomicAdd(&x[0], 1); //B",
    "bytes": "char* c = (char*)s; if (t < 4) c[t] = t, __threadfence(), y[t] = c[t]; //A\n if (t == 40) c[2] = 1; //B",
    "byte_of_word": "((char*)s)[t] = 1; //A\n if (t < 16) y[t] = s[t]; //B",
    "copy": "if (t == 0) memcpy(s, x, 256); //A\n y[t] = s[t]; //B",
    "device_variable": "total += t; //A //B",
    "several_memories": "int* p[2] = {x, s}; for (int k = 0; k < 2; ++k)\n p[k][k == 0 ? t : t / 2] = t; //A //B\n",
    "vectors": "((int4*)x)[t % 8] = int4{t, t, t, t}; __syncthreads(); //A\n y[t] = ((int4*)x)[t % 8].w; //B",
    "wide": "double* d = (double*)s; d[t] = t; //A\n y[t] = d[63 - t]; //B",
    "byte": "char* c = (char*)x; c[t] = t; __syncthreads();\n if (t > 7) y[t] = c[5]; //A\n if (t == 5) c[t] = 1; //B",
}
QUIET = {
    "barrier": "s[t] = x[t]; __syncthreads(); y[t] = s[63 - t];",
    "warp_barrier": "s[t] = t; __syncwarp(); y[t] = s[t ^ 1]; __syncwarp(); s[t] = 3;",
    "atomics": "atomicAdd(&x[0], 1); atomicMax(&x[1], t);",
    "published": (
        "volatile int* flag = x + 100; if (t == 40) { x[0] = 5; __threadfence(); *flag = 1; }\n"
        " if (t == 0) { while (*flag == 0); y[0] = x[0]; }"
    ),
    "published_to_atomics": (
        "if (t == 0) { x[0] = 5; __threadfence(); atomicExch(&x[1], 1); atomicAdd(&x[0], 1); }\n"
        " if (t == 40) { while (atomicAdd(&x[1], 0) == 0); atomicAdd(&x[0], 1); }"
    ),
    "last_block": (
        "y[b] = b; __threadfence(); __syncthreads(); if (t == 0) s[0] = atomicAdd(&x[0], 1); __syncthreads();\n"
        " if (s[0] == 1 && t == 0) x[1] = y[0] + y[1];"
    ).replace("y[b] = b;", "if (t == 3) y[b] = b;"),
    "shared_of_each_block": "if (t == 0) s[0] = b; __syncthreads(); y[b * 64 + t] = s[0];",
    "constructors": "__shared__ Pair p[64]; p[t] = Pair(x[t]); __syncthreads(); y[t] = p[63 - t].y;",  # as of half
    "reads": "y[b * 64 + t] = x[0] + x[t];",
}
# The same in grids of BLOCKS blocks, which several threads of the operating system run at once.
BLOCKS = 512
PLANTED_AT_ONCE = {
    "one_word": "if (t == 0) x[b % 16] = b; //A //B",
    "one_writer": "y[b * 64 + t] = x[0]; //A\n if (b == 300 && t == 5) x[0] = 1; //B",
    "writer_after_barrier": "y[b * 64 + t] = x[t % 4]; //A\n __syncthreads(); if (b == 200 && t < 4) x[t] = 1; //B",
    "two_blocks": (
        "if (b == 3 || b == 400) y[b * 64 + t] = x[0]; //A\n __syncthreads(); if (b == 400 && t == 0) x[0] = 1; //B"
    ),
    "next_block": "x[b * 64 + t] = t; //A\n y[b * 64 + t] = x[(b * 64 + t + 64) % 32768]; //B",
    "one_byte": "((char*)x)[b / 2] = b; //A //B",
    "only_one_has_atomics": (
        "if (t == 0) x[b] = 1; //A\n if (t == 0 && b % 2 == 0) atomicAdd(&y[0], 1);\n"
        " if (t == 0 && b % 2 == 1) y[b] = x[b - 1]; //B"
    ),
}
QUIET_AT_ONCE = {
    "own_words": "y[b * 64 + t] = x[b] + x[t]; __syncthreads(); y[b * 64 + 63 - t] += x[0];",
    "neighbouring_bytes": "((char*)y)[b * 64 + t] = ((char*)x)[t]; if (t < 2) ((short*)x)[16384 + 2 * b + t] = t;",
    "counters": "atomicAdd(&x[t % 16], 1); if (t == 0) atomicMax(&y[0], b);",
    "last_of_all": (
        "if (t == 3) y[b] = b; __threadfence(); __syncthreads(); if (t == 0) s[0] = atomicAdd(&x[0], 1);\n"
        " __syncthreads(); if (s[0] == gridDim.x - 1 && t == 0) for (int i = 0; i < gridDim.x; ++i) y[600] = y[i];"
    ),
    "lock": (
        "if (t == 0) { while (atomicCAS(&x[0], 0, 1) != 0); __threadfence(); x[9] += b; x[10 + b % 3] = x[9];\n"
        " __threadfence(); atomicExch(&x[0], 0); }"
    ),
    "queue": (
        "while (true) { if (t == 0) s[0] = atomicAdd(&x[0], 1); __syncthreads(); int i = s[0]; __syncthreads();\n"
        " if (i >= 512) break; y[i * 64 + t] = i; }"
    ),
    "flag": (
        "volatile int* flag = x + 100; if (b == 0 && t == 0) { x[0] = 5; __threadfence(); *flag = 1; }\n"
        " if (b != 0 && *flag) { __threadfence(); y[b * 64 + t] = x[0]; }"
    ),
}
RACES = {**PLANTED, **PLANTED_AT_ONCE}
BODIES = {**RACES, **QUIET, **QUIET_AT_ONCE}


def text_of(name: str, body: str) -> str:
    head = f'extern "C" __global__ void {name}(int* x, int* y) {{ __shared__ int s[128];'
    return f"{head} int t = threadIdx.x, b = blockIdx.x;\n {body}\n}}\n"


PAIR = "struct Pair { float x, y; __device__ Pair() {} __device__ Pair(float x) : x(x), y(x) {} };"
SOURCE = f"{PAIR} __device__ int total;\n" + "".join(text_of(name, body) for name, body in BODIES.items())
SOURCE += """extern "C" __global__ void constant(const int* x, int* y) { ((int*)x)[threadIdx.x % 3] = y[threadIdx.x]; }
extern "C" __global__ void addressed(int** x, int* y) { y[threadIdx.x] = x[0][threadIdx.x % 32]; }
extern "C" __global__ void before(const int* x, int* y) { y[0] = x[-1]; }
extern "C" __global__ void beyond(const int* x, int* y) { memcpy(y + 4, x + 2, 16); }"""


@pytest.fixture(scope="module")
def mod() -> jitload.Module:
    return jitload.load_inline(
        "races", cuda_sources=SOURCE, arch="cpu", sanitize="race", gpu_check=False, extra_cflags=SANITIZED
    )


def run(mod: jitload.Module, name: str) -> None:
    if name in PLANTED_AT_ONCE or name in QUIET_AT_ONCE:
        grid, size = BLOCKS, 64 * BLOCKS
    else:
        grid, size = (2 if re.search(r"\bb\b", BODIES[name]) else 1), 128
    mod[name][grid, 64](torch.zeros(size, dtype=torch.int32), torch.zeros(size, dtype=torch.int32))


def marked_lines(name: str) -> list[int]:
    lines = SOURCE.split("\n")
    first = next(number for number, line in enumerate(lines) if f" void {name}(" in line)
    end = next(number for number in range(first, len(lines)) if lines[number] == "}")
    return [number + 1 for mark in "AB" for number in range(first, end) if f"//{mark}" in lines[number]]


@pytest.mark.parametrize("name", RACES)
def test_a_planted_race_is_found_with_both_lines_and_both_threads(mod, name):
    with pytest.raises(RuntimeError, match=rf"^{name}\(\): a race: ") as caught:
        run(mod, name)
    place = r" in (block \(\d+, 0, 0\), thread \(\d+, 0, 0\)), at races\.cu:(\d+)"
    found = re.search(f"{place}; the other is .*{place}$", str(caught.value))
    assert found, caught.value
    assert {int(found[2]), int(found[4])} <= {*marked_lines(name)}
    assert found[1] != found[3]
    memory = {"device_variable": "a variable of the module", "broadcast": "shared memory"}.get(name, "")
    assert re.search(rf"a race: an? [\w ]+ of \d+ bytes .*{memory}, and another access are not", str(caught.value))


@pytest.mark.parametrize("name", {**QUIET, **QUIET_AT_ONCE})
def test_a_kernel_without_a_race_is_quiet(mod, name):
    run(mod, name)


def test_launches_that_follow_each_other_are_ordered_and_hide_no_race(mod):
    x, y = torch.zeros(128, dtype=torch.int32), torch.zeros(128, dtype=torch.int32)
    for _ in range(3):
        mod.reads[2, 64](x, y)
        mod.reads[2, 64](y, x)
        mod.warp_barrier[1, 64](x, y)
        with pytest.raises(RuntimeError, match="a race"):
            mod.no_syncwarp[1, 64](x, y)
        mod.own_words[2, 64](x, y)


def test_launches_of_several_threads_at_once_are_watched_apart(mod):
    def found(name: str) -> bool:
        try:
            return bool(run(mod, name))
        except RuntimeError as error:
            return "a race" in str(error)

    names = ["own_words", "one_word", "counters", "two_blocks"] * 4
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(found, names)) == [name in RACES for name in names]


def test_no_kernel_of_the_table_has_a_race():
    files = ["atomics", "blocks", "warps"]
    texts = [(SOURCES / f"{file}.cu").read_text() for file in files]
    mod = jitload.load_inline("table", cuda_sources=texts, arch="cpu", sanitize="race", gpu_check=False)
    for name, case in CASES.items():
        if case.file in files:
            mod[name][case.launch](*case.fresh("cpu"))


def test_a_tensor_that_is_passed_twice_is_one_memory(mod):
    x = torch.zeros(128, dtype=torch.int32)
    with pytest.raises(RuntimeError, match=r"a race: .* of 4 bytes at byte 0 of '[xy]', which has 512 bytes, and "):
        mod.reads[2, 64](x, x)
    mod.addressed[1, 64](torch.tensor([x.data_ptr()]), x[64:])  # x is near the tensor y


def test_an_access_outside_a_tensor_is_found_too(mod):
    with pytest.raises(RuntimeError, match="a write of 4 bytes at byte 256 of 'y', which has 256 bytes"):
        mod.reads[2, 64](torch.zeros(128, dtype=torch.int32), torch.zeros(64, dtype=torch.int32))
    memory = torch.zeros(16, dtype=torch.int32)
    mod.beyond[1, 1](memory, memory[2:])  # they overlap
    with pytest.raises(RuntimeError, match="a read of 16 bytes at byte 8 of 'x', which has 16 bytes"):
        mod.beyond[1, 1](memory[:4], memory[4:])
    with pytest.raises(RuntimeError, match="4 bytes at byte 0 of 'x', which has 12 bytes, through a pointer to const,"):
        mod.constant[1, 8](memory[:3], memory[4:])
    with pytest.raises(RuntimeError, match=r"4 bytes at address 0xf+c, which is in no tensor, .* at races\.cu:\d+$"):
        mod.before[1, 1](torch.zeros(0, dtype=torch.int32), torch.zeros(1, dtype=torch.int32))
