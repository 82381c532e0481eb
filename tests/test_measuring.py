"""Tests of `benchmark` and `compare`: what they measure, what they leave as it was, and what they refuse."""

import time
from contextlib import nullcontext

import numpy as np
import pytest
import torch

import jitload
from jitload.errors import JitLoadError, MismatchError
from jitload.measuring.benchmark import Benchmark
from jitload.measuring.comparison import Comparison
from jitload.measuring.difference import find_differences
from jitload.measuring.memory import Extent, extent_of
from jitload.measuring.poison import POISONS, is_floating, poison

SOURCE = r"""
#define I int i = blockIdx.x * blockDim.x + threadIdx.x
extern "C" __global__ void add(const float* x, float* y, int n) { I; if (i < n) y[i] = x[i] + 1; }
extern "C" __global__ void wrong(const float* x, float* y, int n) {
    I; if (i < n) y[i] = x[i] + 1 + (i == 77 ? 0.5f : i == 80 ? -0.25f : 0);
}
extern "C" __global__ void half_of_it(const float* x, float* y, int n) { I; if (i < n / 2) y[i] = x[i] + 1; }
extern "C" __global__ void increment(float* x, int n) { I; if (i < n) x[i] += 1; }
extern "C" __global__ void sort(int* x, int n) {  // the second time it is done at once
    for (int i = 1; i < n; ++i)
        for (int j = i; j > 0 && x[j - 1] > x[j]; --j) { int t = x[j]; x[j] = x[j - 1]; x[j - 1] = t; }
}
extern "C" __global__ void nothing(int n) {}
extern "C" __global__ void nothing_written(const float* x, float* y, int n) {}
extern "C" __global__ void both(const float* x, float* y, float* scratch, int n) {
    for (int i = 0; i < n; ++i) { scratch[i] = i; y[i] = x[i] + 1; }
}
extern "C" __global__ void count(const int* x, unsigned* y) { y[0] = 4294967295u - x[0]; }
extern "C" __global__ void once(int* x) { if (x[0]) __trap(); x[0] = 1; }
"""
LAUNCH = jitload.Launch(grid="ceil_div(n, 256)", block=256, args={"n": "x.numel()"})
FUNCTIONS = {
    **dict.fromkeys(("add", "wrong", "half_of_it", "increment", "nothing_written"), LAUNCH),
    "sort": jitload.Launch(grid=1, block=1, args={"n": "x.numel()"}),
    "nothing": jitload.Launch(),
    "both": jitload.Launch(grid=1, block=1, args={"n": "x.numel()"}),
    "count": jitload.Launch(grid=1, block=1),
    "once": jitload.Launch(grid=1, block=1),
}
FAST = {"seconds": 0.01}
N = 1000


def load(arch):
    return jitload.load_inline("measured", cuda_sources=SOURCE, functions=FUNCTIONS, arch=arch)


@pytest.fixture(scope="module")
def mod(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JITLOAD_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield load("cpu")


@pytest.fixture
def measured(device, mod, tmp_path, monkeypatch):
    if device == "cpu":
        return mod
    monkeypatch.setenv("JITLOAD_CACHE_DIR", str(tmp_path))
    return load("native")


@pytest.fixture
def x(device):
    return torch.arange(float(N), device=device)


# ---- benchmark -----------------------------------------------------------------------------------------------------


def test_benchmark_of_a_function_that_writes_another_tensor(measured, x, device):
    y = torch.full_like(x, 7)
    record = measured.add.benchmark(x, y, flop=N, **FAST)
    assert isinstance(record, Benchmark)
    assert 0 < record.p10_us <= record.median_us <= record.p90_us
    assert record.host_us > 0
    assert record.samples >= 5
    assert (record.bytes, record.is_estimated, record.flop) == (2 * 4 * N, True, N)
    assert record.gb_per_s == pytest.approx(record.bytes / record.median_us / 1000)
    assert record.flop_per_s == pytest.approx(N / record.median_us * 1e6)
    assert record.device.startswith(device)
    assert (record.peak_share is None) == (record.peak_gb_per_s is None)
    assert (y == 7).all()
    assert str(record).startswith(f"add on {record.device}: {record.median_us:.2f} µs (")


def test_sorting_is_measured_with_what_is_not_sorted(measured, device):
    x = torch.arange(300, 0, -1, dtype=torch.int32, device=device)
    in_order = torch.arange(300, dtype=torch.int32, device=device)
    slow, fast = (measured.sort.benchmark(values, **FAST) for values in (x, in_order))
    assert slow.restored
    assert slow.median_us > 5 * fast.median_us
    assert x[0] == 300


def test_a_function_that_must_not_run_on_its_own_results(mod):
    x = torch.zeros(1, dtype=torch.int32)
    record = mod.once.benchmark(x, restore=True, **FAST)
    assert (record.restored, record.launches, record.bytes) == (True, 1, 8)
    ones = torch.ones(1, dtype=torch.int32)
    assert len(jitload.compare({"a": mod.once, "b": mod.once}, x, reference=lambda x: ones, restore=True, **FAST)) == 2
    with pytest.raises(RuntimeError, match="once"):
        mod.once.benchmark(x, **FAST)
    assert x[0] == 0


def test_benchmark_takes_the_launch_and_bytes(measured, x):
    y = torch.zeros_like(x)
    record = measured.add[1, 32].benchmark(x, y, bytes=10**6, **FAST)
    assert (record.bytes, record.is_estimated) == (10**6, False)
    measured.add[1, 32](x, y)
    assert y.cpu().count_nonzero() == 32
    configured = measured.nothing[1, 32].benchmark(5, **FAST)
    assert configured.bytes == 0
    assert (configured.gb_per_s, configured.flop_per_s, configured.peak_share) == (None, None, None)
    assert measured.nothing[0, 32].benchmark(5, **FAST).median_us >= 0


def test_benchmark_restores_aliases_views_and_offsets(measured, device):
    memory = torch.arange(4.0 * N, device=device)
    before = memory.clone()
    view = memory[N : 2 * N]
    assert measured.add.benchmark(view, view, **FAST).restored
    measured.add.benchmark(view, memory[N + 1 : 2 * N + 1], **FAST)
    assert torch.equal(memory, before)


def test_a_wrong_call_is_the_calls_own_error_and_changes_nothing(measured, x):
    y = torch.full_like(x, 7)
    with pytest.raises(TypeError, match="argument 'y' must be a float32"):
        measured.add.benchmark(x, y.double(), **FAST)
    with pytest.raises(TypeError, match="add"):
        measured.add.benchmark(x, **FAST)
    with pytest.raises(TypeError, match=r"argument 'x' cannot be read as a tensor"):
        measured.add.benchmark(x.to("meta"), y, **FAST)
    with pytest.raises((TypeError, ValueError), match="contiguous"):
        measured.add.benchmark(x[::2], y, **FAST)
    assert (y == 7).all()


def test_a_long_function_is_not_called_often(mod):
    calls = []

    def slow(x):
        calls.append(x)
        time.sleep(0.05)

    record = jitload.compare({"slow": slow}, torch.zeros(1), seconds=0.01)["slow"]
    assert len(calls) < 20
    assert record.median_us > 50_000


def test_a_host_function_is_measured(mod):
    functions = {"f": jitload.Launch(host="x")}
    host = jitload.load_inline("host", cpp_sources="void f(float* x) { x[0] += 1; }", functions=functions)
    x = torch.zeros(3)
    assert host.f.benchmark(x, **FAST).restored
    assert x[0] == 0


# ---- compare -------------------------------------------------------------------------------------------------------


def test_compare_measures_functions_that_agree(measured, x):
    y = torch.full_like(x, 7)
    functions = {"mine": measured.add, "torch": lambda x, y: torch.add(x, 1, out=y), "new": lambda x, y: x + 1}
    table = jitload.compare(functions, x, y, reference=lambda x, y: x.double() + 1, flop=N, **FAST)
    assert isinstance(table, Comparison)
    assert list(table) == list(functions)
    assert table["mine"].flop_per_s > 0
    assert (y == 7).all()
    lines = str(table).splitlines()
    assert [line.split()[0] for line in lines[2:]] == list(functions)
    assert "1.00x" in str(table)
    assert table._repr_html_().count("<tr>") == 4


def test_compare_names_the_wrong_one_before_it_measures(measured, x, monkeypatch):
    monkeypatch.setattr("jitload.measuring.benchmark.Subject.take_sample", lambda _: pytest.fail("it was measured"))
    y = torch.full_like(x, 7)
    functions = {"right": measured.add, "other": measured.wrong}
    with pytest.raises(MismatchError) as caught:
        jitload.compare(functions, x, y, reference=lambda x, y: x + 1, **FAST)
    assert str(caught.value) == (
        "'other' is wrong: its 'y' differs from that of the reference at 2 of 1000 elements (rtol 1.3e-06, atol 1e-05)."
        " The largest difference is 0.5 at index (77,): 78.5, not 78.0"
    )
    error = caught.value
    assert (error.function, error.output, error.index, error.difference) == ("other", "y", (77,), 0.5)
    with pytest.raises(MismatchError, match=r"'other' and 'right' disagree.*reference="):
        jitload.compare(functions, x, y, **FAST)
    assert (y == 7).all()


def test_compare_finds_a_function_that_writes_nothing_where_the_result_is_already(measured, x, caplog):
    y, right = x + 1, {"right": measured.add}
    before = y.clone()
    wrong = {"lazy": measured.half_of_it}
    message = "'lazy' does not write 500 of 1000 elements of its 'y', but {} does: they keep the values with which"
    with pytest.raises(MismatchError, match=message.format("the reference")):
        jitload.compare(wrong, x, y, reference=lambda x, y: x + 1, **FAST)
    for functions in (right | wrong, wrong | right):
        with pytest.raises(MismatchError, match=message.format("right")):
            jitload.compare(functions, x, y, **FAST)
    zeros = torch.full_like(x, -1)
    with pytest.raises(MismatchError, match=message.format("the reference")):  # the right values are zeros
        jitload.compare(wrong, zeros, torch.zeros_like(x), reference=lambda x, y: x + 1, **FAST)
    assert len(jitload.compare(right, x, y, reference=lambda x, y: before, **FAST)) == 1
    assert torch.equal(y, before)
    sorted_values = torch.arange(300, dtype=torch.int32, device=x.device)
    assert len(jitload.compare({"a": measured.sort}, sorted_values, reference=lambda x: x.sort().values, **FAST)) == 1
    assert not caplog.records
    jitload.compare({"a": measured.nothing_written, "b": measured.nothing_written}, x, y, **FAST)
    assert "compared nothing: a does not change its outputs" in caplog.text


def test_compare_runs_each_on_the_first_values(measured, x):
    before = x.clone()
    table = jitload.compare(
        {"a": measured.increment, "b": measured.increment, "c": lambda x: x.add_(1)}, x,
        reference=lambda x: x + 1, **FAST,
    )  # fmt: skip
    assert all(table[name].restored for name in table)
    assert torch.equal(x, before)


def test_nan_agrees_with_nan_and_infinity_with_infinity_alone(mod):
    x = torch.tensor([torch.nan, torch.inf, -torch.inf, 1.0])
    y = torch.zeros(4)
    assert len(jitload.compare({"mine": mod.add}, x, y, reference=lambda x, y: x + 1, **FAST)) == 1
    with pytest.raises(MismatchError, match=r"at 1 of 4 .*index \(1,\): inf, not -inf"):
        jitload.compare({"mine": mod.add}, x, y, reference=lambda x, y: torch.where(x == torch.inf, -x, x + 1), **FAST)


def test_outputs_names_what_is_compared(mod):
    args = (torch.arange(8.0), torch.zeros(8), torch.zeros(8))
    call = lambda **options: jitload.compare(  # noqa: E731
        {"mine": mod.both}, *args, reference=lambda x, y, scratch: x + 1, **options, **FAST
    )
    with pytest.raises(JitLoadError, match=r"2 results \(y, scratch\), but the reference has 1.*outputs=\['y'\]"):
        call()
    assert len(call(outputs=["y"])) == len(call(outputs=[1])) == len(call(outputs=[-2])) == 1
    with pytest.raises(ValueError, match=r"outputs='z': there is no such argument; the arguments are x, y, scratch"):
        call(outputs=["z"])


def test_compare_names_the_function_that_fails(mod):
    x = torch.arange(4.0)
    with pytest.raises(TypeError, match=r"^'bad': add\(\): argument 'y' must be a float32"):
        jitload.compare({"bad": mod.add}, x, x.double(), **FAST)
    with pytest.raises(ZeroDivisionError):
        jitload.compare({"bad": lambda x: 1 // 0}, x, **FAST)
    with pytest.raises(ValueError, match=r"^'raises': not today"):
        jitload.compare({"raises": lambda x: (_ for _ in ()).throw(ValueError("not today"))}, x, **FAST)


@pytest.mark.gpu
def test_results_on_a_gpu_are_not_measured_by_the_wall_clock(gpu):
    with pytest.raises(JitLoadError, match="runs on a GPU, but no argument is a tensor there"):
        jitload.compare({"made": lambda: torch.zeros(5, device="cuda")}, **FAST)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seconds": 0}, "seconds=0: it must be positive"),
        ({"seconds": float("inf")}, "seconds=inf: it must be finite"),
        ({"bytes": -1}, "bytes=-1: it must not be negative"),
        ({"flop": True}, "it must be a number, got"),
        ({"restore": "no"}, "it must be True or False"),
    ],
)
def test_impossible_options_are_refused(mod, options, message):
    with pytest.raises((TypeError, ValueError), match=message):
        mod.nothing[1, 1].benchmark(1, **options)


X = torch.arange(float(N))
NEAR = (X + 1) * (1 + 1e-4)
# The result of the reference, where `add` writes x + 1; options; and how the error begins, or None if both agree.
REFERENCES = [
    ((X + 1).reshape(10, 100), {}, r"has shape \(1000,\), but that of the reference has shape \(10, 100\)"),
    ((X + 1)[:1], {}, r"but that of the reference has shape \(1,\)"),
    ((X + 1).half(), {}, None),
    ((X + 1).to(torch.int64), {}, None),
    (X * torch.nan, {}, "1000 of 1000 elements.*largest difference is inf at index .*, not nan"),
    ((X, X), {}, r"'mine' has 1 results \(y\), but the reference has 2: name the arguments"),
    (None, {}, "differs"),
    ({"y": X + 1}, {}, "'the reference' returned dict: results must be tensors or numbers"),
    ((X + 1).to_sparse(), {"outputs": "y"}, None),
    ((X + 1).numpy(), {}, None),
    (X + 1, {"outputs": 5}, "outputs=5: there is no such argument"),
    (NEAR, {}, "differs"),
    (NEAR, {"rtol": 1e-3}, None),
    (NEAR, {"rtol": 0, "atol": 0.2}, None),
    (X + 1, {"rtol": -1}, "rtol=.*: it must"),
]


@pytest.mark.parametrize(("result", "options", "message"), REFERENCES)
def test_the_result_of_the_reference_decides(mod, result, options, message):
    expects = pytest.raises((JitLoadError, TypeError, ValueError), match=message) if message else nullcontext()
    with expects:
        jitload.compare({"mine": mod.add}, X, torch.zeros(N), reference=lambda x, y: result, **options, **FAST)


def test_integers_that_floats_cannot_tell_apart(mod):
    x, y = torch.tensor([5], dtype=torch.int32), torch.zeros(1, dtype=torch.uint32)
    right = torch.tensor([4294967290], dtype=torch.uint32)
    assert len(jitload.compare({"mine": mod.count}, x, y, reference=lambda x, y: right, **FAST)) == 1
    with pytest.raises(MismatchError, match="largest difference is 1 at"):
        jitload.compare({"mine": mod.count}, x, y, reference=lambda x, y: right.to(torch.int64) - 1, **FAST)
    with pytest.raises(MismatchError):
        jitload.compare({"a": lambda: torch.tensor(2**60), "b": lambda: torch.tensor(2**60 + 1)}, **FAST)


def test_functions_without_results_have_nothing_to_compare():
    with pytest.raises(JitLoadError, match="a has no results to compare: it returns None and writes to no tensor"):
        jitload.compare({"a": lambda: None, "b": lambda: None}, **FAST)
    with pytest.raises(TypeError, match=r"reference= must be a function.*, got int"):
        jitload.compare({"a": lambda: 1}, reference=5, **FAST)


def test_numpy_arrays_that_cannot_be_written_are_inputs(mod, tmp_path):
    (tmp_path / "x").write_bytes(np.arange(N, dtype=np.float32).tobytes())
    x, y = np.memmap(tmp_path / "x", np.float32, "r"), np.full(N, 7, np.float32)
    assert mod.add.benchmark(x, y, **FAST).bytes == 8 * N
    assert len(jitload.compare({"mine": mod.add, "numpy": lambda x, y: x + 1}, x, y, **FAST)) == 2
    assert (y == 7).all()


# ---- without kernels: tables, functions of Python, and the memory of tensors -----------------------------------------


@pytest.mark.parametrize("us", [0.5, 3.14159, 99_999.9, 2e6])
def test_the_table_fits_a_terminal(us):
    record = Benchmark(
        function="f", device="cuda:0 (NVIDIA H200)", median_us=us, p10_us=us, p90_us=us, host_us=12.3456, samples=5,
        launches=1, restored=False, flushed_l2=False, bytes=10**6, is_estimated=True, flop=1e8, peak_gb_per_s=4800.0,
    )  # fmt: skip
    names = ["short", *(f"reduce_rows_of_a_matrix_with_warp_shuffles_v{number}" for number in (1, 2))]
    lines = str(Comparison(dict.fromkeys(names, record))).splitlines()
    assert max(map(len, lines)) <= 80
    shown = [line.split()[0] for line in lines[2:]]
    assert shown[0] == "short"
    assert [name[:3] + name[-3:] for name in shown[1:]] == ["red_v1", "red_v2"]
    assert all("…" in name for name in shown[1:])
    assert repr(record) == f"<jitload benchmark f: {us:.2f} µs on cuda:0 (NVIDIA H200)>"
    head, row = Comparison({"f": record}).rows()
    assert (head[-1], len(head)) == ("GFLOP/s", len(row))
    assert f"<tr><td>f</td><td>{row[1]}</td>" in Comparison({"f": record})._repr_html_()


def test_a_function_that_fails_midway_leaves_the_arguments_as_they_were():
    x, y, calls = torch.arange(4.0), torch.zeros(4), []

    def fails(x, y):
        calls.append(1)
        y.fill_(len(calls))
        if len(calls) > 2:
            raise RuntimeError("midway")
        return y

    with pytest.raises(RuntimeError, match="midway"):
        jitload.compare({"a": fails}, x, y, **FAST)
    assert len(calls) == 3
    assert torch.equal(y, torch.zeros(4))


def test_an_extent_is_the_memory_of_a_tensor():
    x = torch.zeros(6, 4)
    address = x.data_ptr()
    assert extent_of(x) == Extent(address, 96, 96, None)
    assert extent_of(x[1:3, ::2]) == Extent(address + 16, 28, 16, None)
    assert extent_of(x[0, :1].expand(1000, 1)) == Extent(address, 4, 4, None)
    array = np.zeros(8, np.int16)
    assert extent_of(array[::-2]) == Extent(array.ctypes.data + 2, 14, 8, None)
    assert extent_of(torch.zeros(3, device="meta")).span == 0
    assert extent_of(torch.eye(3).to_sparse()).span == 0


@pytest.mark.parametrize("functions", [{}, [], None, {"a": 5}, {1: len}])
def test_compare_takes_a_dict_of_functions(functions):
    with pytest.raises(TypeError, match="must be a dict of functions by name"):
        jitload.compare(functions, 1)


DTYPES = [torch.float32, torch.float8_e4m3fn, torch.bool, torch.complex64, torch.int64, torch.bfloat16]


@pytest.mark.parametrize("dtype", DTYPES)
def test_poison_overwrites_tensors_of_each_dtype(dtype):
    memory = torch.zeros(4, 6).to(dtype)
    values = []
    for byte in POISONS:
        poison(memory.t()[::2, 1:3], byte)
        poison(memory[3, :1].expand(5, 1), byte)
        values.append(memory[1, 0].clone())
        assert memory[[0, 1, 1, 2, 3], [0, 1, 3, 5, 2]].view(torch.uint8).count_nonzero() == 0
        remaining = torch.stack((memory[1, 4], memory[2, 2], memory[3, 0]))
        assert find_differences(remaining, values[-1].expand(3), 0.0, 0.0)[0].sum() == 0
    assert find_differences(*values, 0.0, 0.0)[0].all()
    assert is_floating(memory) == (dtype not in (torch.bool, torch.int64))
