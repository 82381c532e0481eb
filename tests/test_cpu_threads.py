"""Ctrl-C and a limit of time end any kernel on the CPU, nothing is left of it; the threads that run grids."""

import signal
import subprocess
import threading

import numpy as np
import pytest
import torch
from support.calls import run_python

import jitload

SOURCE = r"""
__device__ unsigned next(unsigned n) { return n * 1664525 + (n >> 7); }
extern "C" __global__ void loop(unsigned* x) { /* a plain loop without an end */
  for (unsigned n = x[0]; n != 77 || x[1]; n = next(n)) x[2] += n == 78;
}
extern "C" __global__ void late(unsigned* x) { /* only one block does not end */
  if (blockIdx.x == gridDim.x - 1) for (unsigned n = x[0]; n != 77 || x[1]; n = next(n)) x[2] += n == 78;
}
extern "C" __global__ void fails(unsigned* x) { /* one block does not end, another fails */
  unsigned n = x[0];
  for (int i = 0; i < 300000 || (blockIdx.x == 32 && (n != 77 || x[1])); i += i < 300000) n = next(n);
  x[2] = n;
  assert(blockIdx.x != gridDim.x - 1);
}
extern "C" __global__ void barriers(unsigned* x) { while (!x[1]) __syncthreads(); }
extern "C" __global__ void alone(unsigned* x) { /* one thread computes, the others wait for it */
  if (threadIdx.x == 0) for (unsigned n = x[0]; n != 77 || x[1]; n = next(n)) x[2] += n == 78;
  __syncthreads();
}
extern "C" __global__ void allocates(unsigned* x) {
  while (!x[1]) free(malloc(16 + (++x[2] & 4095)));
}
extern "C" __global__ void divides(unsigned* x) { for (unsigned n = 1; !x[1]; ++n) x[2] = x[3] % (n | 1); }
extern "C" __global__ void add(unsigned* x) { atomicAdd(x + 3, 1u); }
extern "C" __global__ void large(float* x) {
  float numbers[131072];
  for (int i = 0; i < 131072; ++i) numbers[i] = i * x[2] + i;
  x[threadIdx.x] = numbers[131071 - (int)x[3]];
}
extern "C" __global__ void large_fiber(float* x) {
  float numbers[65536];
  for (int i = 0; i < 65536; ++i) numbers[i] = i * x[2] + i;
  __syncthreads();
  x[threadIdx.x] = numbers[65535 - (int)x[3]];
}
extern "C" __global__ void doubles(float* x) { x[0] = x[0] * 2; }
extern "C" __global__ void backwards(unsigned* x) { while (atomicAdd(x, 0u) != gridDim.x - 1 - blockIdx.x); }
extern "C" __global__ void meets(unsigned* x, int times) {
  for (int i = 0; i < times; ++i) __syncthreads();
  atomicAdd(&x[blockIdx.x % 320], 1u);
}
__device__ int* at(int* x, long long n) { return threadIdx.x == 2 ? x + n : x; }
extern "C" __global__ void writes(int* x, long long n) { *at(x, n) = 1; }
extern "C" __global__ void writes_later(int* x, long long n) { __syncthreads(); *at(x, n) = 1; }
extern "C" __global__ void writes_quotient(int* x, long long n) { *at(x, n) = 8 / x[threadIdx.x]; }
"""
PRELUDE = """
import os, signal, threading, time
import numpy as np
mod = jitload.load_module(sys.argv[1])
def tasks(): return len(os.listdir("/proc/self/task"))
def mappings(): return len(open("/proc/self/maps").readlines())
def interrupt(kernel, config, handler=signal.default_int_handler):
    signal.signal(signal.SIGINT, handler)
    timer = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    try:
        mod[kernel][config](*arguments_of(kernel))
    except (KeyboardInterrupt, RuntimeError) as error:
        timer.join()
        return f"{type(error).__name__} {error}"
def arguments_of(kernel):
    return (np.zeros(320, np.uint32), 2) if kernel == "meets" else (np.zeros(4, np.uint32),)
"""


@pytest.fixture(scope="module")
def path() -> str:
    return jitload.build_inline("interrupted", cuda_sources=SOURCE, arch="cpu")


def test_any_kernel_ends_and_the_next_one_works(path):
    program = f"""{PRELUDE}
kernels = [("loop", (1, 1)), ("late", (64, 1)), ("barriers", (16, 64)), ("alone", (1, 64)), ("allocates", (8, 1)),
           ("divides", (1, 1)), ("add", (2**30, 1)), ("meets", (2**30, 2))]
for turn in range(2):
    for kernel, config in kernels:
        begin, thread_begin = time.monotonic(), time.thread_time()
        ending = interrupt(kernel, config)
        spent, thread_spent = time.monotonic() - begin, time.thread_time() - thread_begin
        x = np.zeros(4, np.uint32)
        mod.add[100, 100](x)
        if ending != "KeyboardInterrupt " or spent > 30 or thread_spent > 2 or x[3] != 10_000:
            print(kernel, config, ending, spent, thread_spent, x[3])
    if turn == 0:
        before = tasks(), mappings()
print(tasks() - before[0], abs(mappings() - before[1]) < 10)
"""
    assert run_python(program, path) == "0 True\n"


def test_a_kernel_that_holds_a_lock_of_libc_is_not_interrupted(path):
    """Not even if the signal comes again while its handler runs."""
    program = f"""{PRELUDE}
main, is_over = threading.get_ident(), False
def flood():
    while not is_over: signal.pthread_kill(main, signal.SIGURG)
thread = threading.Thread(target=flood)
thread.start()
endings = set()
for turn in range(10):
    endings.add(interrupt("allocates", (1, 1)))
    [bytes(size) for size in range(1000, 9000, 100)]  # takes the lock
is_over = True
thread.join()
print(endings)
"""
    assert run_python(program, path) == "{'KeyboardInterrupt '}\n"


def test_a_handler_that_does_not_raise(path):
    """It runs within a second, on the thread's own stack, and the kernel goes on with the registers that it had."""
    program = f"""{PRELUDE}
seen = []
x = np.zeros(4, np.uint32)
def handler(*_):
    def deep(n): return 0 if n == 0 else 1 + deep(n - 1)
    seen.append(deep(500))
    try:
        mod.add[1, 1](x)
    except RuntimeError as error:
        seen.append(str(error))
    x[1] = 1  # ends it
signal.signal(signal.SIGALRM, handler)
signal.setitimer(signal.ITIMER_REAL, 0.15)
mod.barriers[1, 32](x)
print(seen)
"""
    refused = "a kernel was called by a signal handler while this thread runs another kernel of its library"
    assert run_python(program, path) == f"{[500, refused]}\n"


def test_a_block_that_fails_ends_those_that_do_not_end(path, monkeypatch):
    monkeypatch.setenv("JITLOAD_CPU_THREADS", "2")
    program = f"""{PRELUDE}
try:
    mod.fails[64, 1](np.zeros(4, np.uint32))
except RuntimeError as error:
    print("assertion" in str(error) and "in block (63, 0, 0)" in str(error))
"""
    assert run_python(program, path) == "True\n"


def test_any_kernel_ends_at_the_limit_of_time(path, monkeypatch):
    monkeypatch.setenv("JITLOAD_CPU_TIMEOUT", "0.1")
    monkeypatch.setenv("JITLOAD_CPU_THREADS", "2")
    program = f"""{PRELUDE}
import re
kernels = [("loop", (64, 32), ""), ("late", (64, 1), ""), ("barriers", (16, 64), ", thread"),
           ("alone", (1, 64), r", thread .0, 0, 0.$"), ("allocates", (1, 1), ""), ("backwards", (4, 32), ", thread"),
           ("divides", (1, 1), ""), ("add", (2**30, 1), ""), ("meets", (2**30, 2), "")]
for kernel, config, thread in kernels:
    begin = time.monotonic()
    try:
        mod[kernel][config](*arguments_of(kernel))
        print(kernel, config, "ended")
    except RuntimeError as error:
        said = rf"{{kernel}}.*: not finished after 0.1 s, the limit of JITLOAD_CPU_TIMEOUT, in block .*[)]{{thread}}"
        if not re.match(said, str(error)) or time.monotonic() - begin > 30:
            print(kernel, config, error, time.monotonic() - begin)
x = np.zeros(4, np.uint32)
mod.add[100, 100](x)
print(x[3])
"""
    assert run_python(program, path) == "10000\n"


def test_an_invalid_address_is_reported_before_the_process_ends(path):
    """Also where Python's own handler comes next, as in a notebook."""
    program = f"""{PRELUDE}
import faulthandler
import tempfile
file = tempfile.TemporaryFile()
file.truncate(1 << 16)
x = np.memmap(file, np.int32, "r+")
file.truncate(1 << 12)  # the rest of the memory has no file any more
wild = (np.ones(4, np.int32), 1 << 40, signal.SIGSEGV)
truncated = (x, 1 << 13, signal.SIGBUS)
cases = (("writes", wild), ("writes_later", wild), ("writes_quotient", wild), ("writes", truncated))
for kernel, (x, offset, number) in cases:
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        os.dup2(write, 2)
        faulthandler.enable()
        mod[kernel][1, 4](x, offset)
        os._exit(0)
    os.close(write)
    said = open(read, errors="replace").read()
    # tvm-ffi's handler comes last. It may need a larger stack than that of Python's handler, and abort.
    ended = os.WTERMSIG(os.waitpid(child, 0)[1]) in (number, signal.SIGABRT)
    print(ended, "Fatal Python error" in said, said.splitlines()[0])
"""
    said = "jitload: {}(): an access to an invalid address in block (0, 0, 0){}; "
    said += 'sanitize="address" checks accesses to tensors'
    thread = ", thread (2, 0, 0)"
    kernels = (("writes", ""), ("writes_later", thread), ("writes_quotient", thread), ("writes", ""))
    assert run_python(program, path).splitlines() == [f"True True {said.format(*kernel)}" for kernel in kernels]


def test_denormals_stay_as_the_program_wants_them(path):
    """A signal handler begins with the processor's defaults, and the kernel is left from one."""

    def handler(*_: object) -> None:
        raise TimeoutError

    mod = jitload.load_module(path)
    previous = signal.signal(signal.SIGALRM, handler)
    if not torch.set_flush_denormal(True):
        pytest.skip("the processor does not flush denormals")
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.15)
        with pytest.raises(TimeoutError):
            mod.loop[1, 1](np.zeros(4, np.uint32))
        x = np.array([1e-40], np.float32)
        mod.doubles[1, 1](x)
        assert x[0] == 0
    finally:
        torch.set_flush_denormal(False)
        signal.signal(signal.SIGALRM, previous)


def test_a_thread_with_a_small_stack(path):
    """A GPU gives each thread 512 KiB of local memory at most; kernels have stacks of their own."""
    x = np.zeros(4, np.float32)
    previous = threading.stack_size(64 << 10)
    try:
        thread = threading.Thread(target=jitload.load_module(path).large[1, 2], args=(x,))
        thread.start()
    finally:
        threading.stack_size(previous)
    thread.join()
    assert x.tolist() == [131071, 131071, 0, 0]


def test_more_local_memory_than_a_fiber_has(path):
    mod = jitload.load_module(path)
    x = np.zeros(4, np.uint32)
    for _ in range(2):
        with pytest.raises(
            RuntimeError, match=r"large_fiber\(\): the local variables of a thread take more than 128 KiB,"
        ):
            mod.large_fiber[1, 2](np.zeros(4, np.float32))
        mod.add[2, 32](x)
    assert x[3] == 128


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


def test_stacks_do_not_use_up_the_mappings_of_a_process(path, tmp_path, monkeypatch):
    """Before Linux 6.13 each guarded stack takes two of 65,530: forty threads of 1,024 fibers would take them all."""
    (tmp_path / "old.c").write_text(OLD_LINUX)
    library = tmp_path / "old.so"
    subprocess.run(["cc", "-shared", "-fPIC", tmp_path / "old.c", "-o", library], check=True)
    monkeypatch.setenv("LD_PRELOAD", str(library))
    monkeypatch.setenv("JITLOAD_CPU_THREADS", "40")
    program = f"""{PRELUDE}
for _ in range(4):
    out = np.zeros(320, np.uint32)
    mod.meets[320, 1024](out, 20)
    assert (out == 1024).all()
print(2000 < mappings() < 40000, tasks() > 30)
"""
    assert run_python(program, path) == "True True\n"
