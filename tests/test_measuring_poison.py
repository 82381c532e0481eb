"""How `compare` overwrites outputs to find elements that nobody writes, and keeps integers that a function reads."""

import pytest
import torch

import jitload
from jitload.errors import MismatchError
from jitload.measuring.comparison import may_read

SOURCE = r"""
extern "C" __global__ void positive(const float* x, float* y, int n) {
    for (int i = 0; i < n; ++i) if (x[i] > 0) y[i] = x[i];
}
extern "C" __global__ void histogram(const float* x, int* y, int n) {
    for (int i = 0; i < n; ++i) y[(int)x[i] % 8]++;
}
extern "C" __global__ void accumulate(const float* x, float* y, int n) {
    for (int i = 0; i < n; i += 2) y[i] += x[i];
}
// The outputs of the following kernels are integers. The first two only store; the others also read.
__global__ void mask(const int* x, int* y, int n) { for (int i = 0; i < n; ++i) y[i] = x[i] > 3; }
__global__ void ones(const int* x, int* y, int n) { for (int i = 0; i < n; ++i) if (x[i] > 3) y[i] = 1; }
__global__ void gather(int* x, int* y, int n) { for (int i = 0; i < n; ++i) y[i] = x[x[i]]; }
__global__ void lock(const int* x, int* y, int n) {
    while (atomicCAS(&y[0], 0, 1) != 0) {}
    y[0] = 0;
}
"""
LAUNCH = jitload.Launch(grid=1, block=1, args={"n": "x.numel()"})
NAMES = ("positive", "histogram", "accumulate", "mask", "ones", "gather", "lock")
FAST = {"seconds": 0.01}
N = 1000


@pytest.fixture
def x(device):
    return torch.arange(float(N), device=device)


@pytest.fixture
def measured(device):
    arch = "cpu" if device == "cpu" else "native"
    return jitload.load_inline("poisoned", cuda_sources=SOURCE, functions=dict.fromkeys(NAMES, LAUNCH), arch=arch)


def test_compare_finds_elements_that_had_the_right_values(measured, x):
    x -= 500
    with pytest.raises(MismatchError, match="'f' does not write 501 of 1000 elements of its 'y'"):
        jitload.compare({"f": measured.positive}, x, x.relu(), reference=lambda x, y: x.relu(), **FAST)
    gaps = torch.zeros(2 * N, device=x.device)
    gaps[::2] = x
    with pytest.raises(MismatchError, match="'f' does not write 501 of 1000"):
        jitload.compare({"f": lambda x, y: torch.where(x > 0, x, y, out=y) is None or None}, gaps[::2], gaps[1::2],
                        reference=lambda x, y: x.relu(), outputs=1, **FAST)  # fmt: skip
    assert torch.equal(gaps, torch.stack((x, torch.zeros_like(x)), 1).reshape(-1))


@pytest.mark.parametrize("is_host", [True, False])
def test_compare_accepts_functions_that_read_their_outputs(measured, x, is_host, caplog):
    bins, even = torch.zeros(16, dtype=torch.int32, device=x.device), (torch.arange(N, device=x.device) + 1) % 2
    counts = torch.bincount((x % 8).int(), minlength=16).int()
    y = torch.ones_like(x)
    total = y + x * even
    from_y = (lambda x, y: y + x * even) if is_host else (lambda x, y: total)
    assert len(jitload.compare({"f": measured.histogram}, x, bins, reference=lambda x, y: counts, **FAST)) == 1
    assert len(jitload.compare({"f": measured.accumulate}, x, y, reference=from_y, **FAST)) == 1
    assert not bins.any()
    assert (y == 1).all()
    assert not caplog.records


def test_compare_finds_functions_of_python_that_stop_writing():
    x, calls = torch.ones(4), []

    def at_first(x, y):
        calls.append(y)
        if len(calls) < 6:
            torch.add(x, 1, out=y)

    for function in (at_first, lambda x, y: None):
        with pytest.raises(MismatchError, match="'f' does not write 4 of 4 elements of its 'argument 1'"):
            jitload.compare({"f": function}, x, x + 1, reference=lambda x, y: x + 1, outputs=1, **FAST)
    assert len(calls) > 20  # it was found after the measurement


def test_compare_finds_integers_that_a_kernel_does_not_write(measured, device):
    x, zeros = torch.arange(8, dtype=torch.int32, device=device), torch.zeros(8, dtype=torch.int32, device=device)
    mask = (x > 3).int()
    lazy = "'ones' does not write 4 of 8 elements of its 'y', but {} does"
    for y in (zeros, mask):
        with pytest.raises(MismatchError, match=lazy.format("the reference")):
            jitload.compare({"ones": measured.ones}, x, y.clone(), reference=lambda x, y: (x > 3).int(), **FAST)
        with pytest.raises(MismatchError, match=lazy.format("mask")):
            jitload.compare({"mask": measured.mask, "ones": measured.ones}, x, y.clone(), **FAST)
        right = {"mask": measured.mask, "python": lambda x, y: y.copy_(x > 3)}
        assert len(jitload.compare(right, x, y.clone(), reference=lambda x, y: mask, **FAST)) == 2


def test_compare_overwrites_no_integers_that_a_kernel_reads(measured, device):
    """With wrong indices, a kernel would read anywhere, and with a taken lock, it would wait for ever."""
    x, y = torch.arange(8, dtype=torch.int32, device=device), torch.zeros(8, dtype=torch.int32, device=device)
    assert len(jitload.compare({"a": measured.gather}, x, y, outputs=["x", "y"], reference=lambda x, y: (x, x), **FAST))
    assert len(jitload.compare({"a": measured.lock}, x, y, reference=lambda x, y: y * 0, **FAST)) == 1
    assert len(jitload.compare({"a": measured.mask}, x, x, reference=lambda x, y: (x > 3).int(), restore=True, **FAST))


STORES = {
    "for (int* z = y; z < y + i; ++z) *z = 1;": True,
    "": True,
    "x[y[i]] = 1;": False,
    "int* z = i ? y : x; x[0] = z[1];": False,
    "z2[0] = y;": False,
    "atomicAdd(&y[i], 1);": False,
    "pass_on(y);": False,
    "reinterpret_cast<int*>(reinterpret_cast<long long>(y) ^ 8)[0] = 1;": False,
}


@pytest.mark.parametrize("arch", ["cpu", "sm_90a"])
def test_tensors_that_a_kernel_only_stores_to_are_known(arch):
    kernels = (f"__global__ void k{n}(int* x, int* y, int** z2, int i) {{ {text} }}\n" for n, text in enumerate(STORES))
    source = "__device__ __noinline__ void pass_on(int* y) { y[0] = y[1]; }\n" + "".join(kernels)
    mod = jitload.load_inline("stores", cuda_sources=source, arch=arch)
    assert {text: not may_read(mod[f"k{n}"], 1) for n, text in enumerate(STORES)} == STORES


PART = 'unsigned low; asm volatile("ld.param.u32 %0, [f_param_0];" : "=r"(low)); *y = 1;'
UNKNOWN = {
    "template <class T> __global__ void f(T* y) { *y = 1; }": ("f<{y.dtype}>", {"dtypes": ["float32", "int32"]}, "cpu"),
    "__global__ void f(int* y) { *y = 1; } __global__ void f(int* y, int i) { y[i]++; }": ("f(int*, int)", {}, "cpu"),
    "__global__ void f(int* y) {\n#ifdef JITLOAD_CPU\n ++\n#endif\n *y = 1; }": ("f", {}, "cpu"),
    f'extern "C" __global__ void f(int* y) {{ {PART} }}': ("f", {}, "sm_90"),
}


def test_what_is_not_known_may_be_read():
    assert may_read(print, 0)
    for text, (kernel, options, arch) in UNKNOWN.items():
        functions = {"f": jitload.Launch(kernel=kernel, **options)}
        assert may_read(jitload.load_inline("unknown", cuda_sources=text, functions=functions, arch=arch).f, 0), text
