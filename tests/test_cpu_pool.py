"""The pool of threads that runs grids on the CPU: who works, signals, and what is left when threads end."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from support.calls import run_python

import jitload
from jitload import Launch

SOURCE = r"""
extern "C" __global__ void meets(int* out, int times) {
  for (int i = 0; i < times; ++i) __syncthreads();
  atomicAdd(&out[blockIdx.x], 1);
}
extern "C" __global__ void spins(int* out) { /* on a fiber: it may wait for another thread */
  for (volatile int i = 0; i < 20000; ++i) { }
  out[blockIdx.x] = blockIdx.x + 1;
}
template <int N> __global__ void count(int* out) { /* a plain loop */
  unsigned n = out[blockIdx.x];
  for (int i = 0; i < N; ++i) n = n * 1664525 + (n >> 7);
  out[blockIdx.x] = n;
}
"""
FUNCTIONS = {
    "meets": Launch(grid="out.numel()", block=1024),
    "spins": Launch(grid="out.numel()", block=1),
    "counts": Launch(kernel="count<20000>", grid="out.numel()", block=1),
}
PRELUDE = """
import os, signal, threading, time
import numpy as np
mod = jitload.load_module(sys.argv[1])
def tasks(): return len(os.listdir("/proc/self/task"))
def mappings(): return len(open("/proc/self/maps").readlines())
"""


@pytest.fixture(scope="module")
def path() -> str:
    return jitload.build_inline("pool", cuda_sources=SOURCE, functions=FUNCTIONS, arch="cpu")


def test_a_signal_handler_that_raises(path):
    program = f"""{PRELUDE}
def handler(*_): raise TimeoutError("too long")
signal.signal(signal.SIGALRM, handler)
out = np.zeros(1 << 26, np.int32)
for kernel in (mod.spins, mod.counts):
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    begin = time.monotonic()
    try:
        kernel(out)
    except TimeoutError as error:
        print(error, time.monotonic() - begin < 10)
"""
    assert run_python(program, path) == "too long True\n" * 2


def test_a_small_grid_of_long_blocks_is_shared(path, monkeypatch):
    """Sixteen threads in all, but each takes long: found when the first block took long."""
    monkeypatch.setenv("JITLOAD_CPU_THREADS", "3")
    program = f"""{PRELUDE}
before = tasks()
out = np.zeros(16, np.int32)
mod.spins(out)
print(tasks() - before, (out == np.arange(1, 17)).all())
mod.spins(np.zeros(1, np.int32))
print(tasks() - before)
"""
    assert run_python(program, path) == "3 True\n3\n"  # two that help, and one that watches for Ctrl-C


def test_threads_that_end_leave_no_stacks(path):
    program = f"""{PRELUDE}
def work(): mod.meets(np.zeros(1, np.int32), 2)
def size(): return int(open("/proc/self/statm").read().split()[0]) >> 8
work()
before = mappings(), size()
for _ in range(20):
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
print(mappings() - before[0] < 20, size() - before[1] < 300)
"""
    assert run_python(program, path) == "True True\n"


OLD_LINUX = r"""
#define _GNU_SOURCE
#include <errno.h>
#include <sys/syscall.h>
#include <unistd.h>
int madvise(void* at, unsigned long size, int advice) {
  if (advice == 102) return errno = EINVAL, -1;
  return (int)syscall(SYS_madvise, at, size, advice);
}
"""


def test_stacks_do_not_use_up_the_mappings_of_a_process(path, tmp_path: Path, monkeypatch):
    """Before Linux 6.13 each guarded stack takes two of 65,530: forty threads of 1,024 fibers would take them all."""
    (tmp_path / "old.c").write_text(OLD_LINUX)
    library = tmp_path / "old.so"
    subprocess.run(["cc", "-shared", "-fPIC", tmp_path / "old.c", "-o", library], check=True)
    monkeypatch.setenv("LD_PRELOAD", str(library))
    monkeypatch.setenv("JITLOAD_CPU_THREADS", "40")
    program = f"""{PRELUDE}
for _ in range(4):
    out = np.zeros(320, np.int32)
    mod.meets(out, 20)
    assert (out == 1024).all()
print(2000 < mappings() < 40000, tasks() > 30)
"""
    assert run_python(program, path) == "True True\n"
