"""Functions of variants: the space, the choice by key, what a call launches, and calls that take a recent plan over."""

import dataclasses
import hashlib
import json
import logging
import math
import random
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.arrays import CudaArray

import jitload
from jitload import Launch, Tune
from jitload.cli import main
from jitload.errors import JitLoadError, LaunchSpecError, warn_once
from jitload.request.rows import Row, choose, merge, read_rows
from jitload.request.tune import Tuned

SOURCE = r"""
template <class T, int V> __global__ void scale(const T* x, T* y, int n) {
    int i = (blockIdx.x * blockDim.x + threadIdx.x) * V;
    for (int j = i; j < i + V && j < n; ++j) y[j] = T(float(x[j]) * FACTOR);
}"""
OPTIONS = ["-DFACTOR={F}"]
LAUNCH = {"kernel": "scale<{x.dtype}, {V}>", "grid": "ceil_div(n, B * V)", "block": "B", "args": {"n": "x.numel()"}}
LAUNCH["dtypes"] = ("float32", "float16")
TUNE = {"B": (32, 64), "V": (1, 2), "F": (3, 4), "when": "B * V <= 64", "key": "n"}
CHOICES = {100: (32, 2, 3), 1000: (64, 1, 4), 10_000: (32, 1, 3)}


def write(path: Path, gpu: str, choices: dict[int, tuple[int, int, int]], dtype: str = "float32") -> list[Any]:
    rows = [
        {"function": "scale", "gpu": gpu, "dtypes": {"x": dtype}, "key": {"n": n}, "number": 0, "median_us": 1.0,
         "values": dict(zip("BVF", values, strict=True))}
        for n, values in choices.items()
    ]  # fmt: skip
    rows += json.loads(path.read_text())["rows"] if path.exists() else []
    path.write_text(json.dumps({"format": 1, "rows": rows}))
    return rows


def load(path: Path | None, arch: str, **tune: Any) -> jitload.Module:
    functions = {"scale": Launch(**LAUNCH, tune=Tune(**{**TUNE, **tune}))}
    return jitload.load_inline(
        "tuned", cuda_sources=SOURCE, functions=functions, arch=arch, extra_cuda_cflags=OPTIONS, tuned=path
    )


def test_the_space_is_the_product_in_order_without_what_the_condition_excludes():
    space = [dict(values) for values in Tune(**TUNE).space(("cpu",))]
    assert space[:3] == [{"B": 32, "V": 1, "F": 3}, {"B": 32, "V": 1, "F": 4}, {"B": 32, "V": 2, "F": 3}]
    assert len(space) == 6
    tune = Tune(T=("float", "double"), W=(True, False), N=range(1, 3), M=7, D="2 * device.multiprocessors")
    values = dict(tune.space(("cpu",))[0])
    row = Row(function="f", gpu="cpu", values=tune.space(("cpu",))[0], number=0)
    assert row.label[:22] == "T=float W=true N=1 M=7"
    assert values["D"] % 2 == 0
    assert len(tune.space(("cpu",))) == 8
    assert Tune(B=("0 * device.multiprocessors", 0, False)).space(("cpu",)) == [(("B", 0),)]
    same = Tune(T=["float", "double"], W=(True, False), N=[1, 2], M=7, D=("2 * device.multiprocessors",))
    assert (tune, hash(tune)) == (same, hash(same))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "has no values"),
        ({"B": 1.5}, "B: values must be int, bool or str, got float"),
        ({"B": 1, "when": "B > 1"}, "when: allows no combination"),
        ({"B": 1, "when": "C > 1"}, r"when: there is no parameter 'C'(?s:.*)The names here are B\."),
        ({name: range(100) for name in "ABC"}, "has more than 10,000 combinations"),
    ],
)
def test_a_malformed_space_is_refused(arguments, message):
    with pytest.raises(LaunchSpecError, match=message):
        Tune(**arguments).space(("cpu",))


def test_a_fact_about_a_gpu_is_not_guessed(monkeypatch):
    monkeypatch.setattr("jitload.request.tune.device_attribute", lambda _: None)
    with pytest.raises(LaunchSpecError, match=r"this machine has no GPU\s+Pass numbers instead"):
        Tune(B="device.multiprocessors").space(("sm_90a",))


def test_the_first_of_the_fastest_is_chosen_and_the_last_measurement_counts():
    def row(number: int, us: float | None, **facts: Any) -> Row:
        return Row(function="f", gpu="cpu", values=(("B", number),), number=number, median_us=us, **facts)

    failed = [row(3, None, reason="does not compile"), row(4, 1.0, reason="wrong")]
    rows = [row(0, 20.0), row(1, 10.05), row(2, 10.0), *failed]
    assert choose(rows) == rows[1]
    assert choose(rows[3:]) is None
    assert [r.number for r in merge([*rows, row(0, 5.0)])] == [0, 1, 2, 3, 4]
    assert choose(merge([*rows, row(0, 5.0)])).number == 0
    assert merge([*rows, row(2, 9.0, driver=13000)]) == (row(2, 9.0, driver=13000),)


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> jitload.Module:
    path = tmp_path_factory.mktemp("tuned") / "scale.json"
    write(path, "cpu", CHOICES)
    return load(path, "cpu", nearest="log2")


def test_the_key_chooses_among_kernels_of_different_options(tuned, caplog):
    """The variants for F=3 and for F=4 are compiled separately, and linked into one library."""
    caplog.set_level(logging.INFO, "jitload.errors")
    for n, (block, _, factor) in CHOICES.items():
        x, y = torch.ones(n), torch.zeros(n)
        tuned.scale(x, y)
        assert torch.equal(y, factor * x)
        chosen = tuned.scale.variant(x, y)
        assert (chosen.values, chosen.how) == (dict(zip("BVF", CHOICES[n], strict=True)), "tuned")
        assert (chosen.key, chosen.threads) == ({"n": n}, block)
    assert not caplog.messages
    for n, like in ((1, 100), (316, 100), (317, 1000), (10**6, 10_000)):
        x, y = torch.ones(n), torch.zeros(n)
        for _ in range(2):
            tuned.scale(x, y)
        assert torch.equal(y, CHOICES[like][2] * x)
        assert tuned.scale.variant(x, y).how == "nearest"
    consequence = "was not tuned, so calls launch the variant of the nearest key"
    assert caplog.messages == [f"scale(): the key ({n}) {consequence}" for n in (1, 316, 317, 10**6)]


def test_the_dtype_chooses_first(tuned):
    x, y = torch.ones(7, dtype=torch.float16), torch.zeros(7, dtype=torch.float16)
    tuned.scale(x, y)
    assert torch.equal(y, 3 * x)
    chosen = tuned.scale.variant(x, y)
    assert (chosen.dtypes, chosen.how, chosen.values["B"]) == ({"x": "float16"}, "first", 32)
    with pytest.raises(TypeError, match=r"no kernel takes \(x=float64, y=float64\); there are kernels for \(x=float32"):
        tuned.scale(x.double(), y.double())
    with pytest.raises(TypeError, match=r"takes 2 arguments"):
        tuned.scale.variant(x)
    assert "digest" in tuned._jitload_facts()["functions"]["scale"]["tune"]


def test_each_model_of_gpu_has_its_table(stub_driver, tmp_path):
    path = tmp_path / "two.json"
    write(path, "Stub GPU 0", {8: (32, 2, 3)})
    write(path, "Stub GPU 1", {8: (64, 1, 4), 9: (32, 1, 4)})
    mod = load(path, "sm_90a")
    launched = []
    for device, n in ((0, 8), (1, 8), (1, 9), (0, 9)):
        x = CudaArray(np.zeros(n, np.float32), device=device)
        mod.scale(x, x)
        launched.append((stub_driver.launches()[-1].block[0], mod.scale.variant(x, x).values["F"]))
    assert launched == [(32, 3), (64, 4), (32, 4), (32, 3)]
    symbols = {launch.kernel[:16] for launch in stub_driver.launches()}
    assert symbols == {"_Z5scaleIfLi2EEv", "_Z5scaleIfLi1EEv"}
    assert mod.scale.variant(x, x).how == "first"
    functions = {"scale": Launch(**LAUNCH, tune=Tune(**TUNE))}
    options = {"cuda_sources": SOURCE, "functions": functions, "extra_cuda_cflags": OPTIONS, "arch": "sm_90a"}
    library = jitload.load_module(jitload.build_inline("two", **options, tuned=path, output=tmp_path / "two.so"))
    library.scale(x, x)
    x = CudaArray(np.zeros(8, np.float32), device=1)
    library.scale(x, x)
    assert [launch.block[0] for launch in stub_driver.launches()[-2:]] == [32, 64]


def test_a_gpu_without_a_table_takes_the_nearest_key_of_all_gpus_and_says_so_once(stub_driver, tmp_path, caplog):
    caplog.set_level(logging.INFO, "jitload.errors")
    warn_once.cache_clear()
    path = tmp_path / "others.json"
    write(path, "GPU A", {8: (32, 2, 3), 100: (64, 1, 3)})
    write(path, "GPU B", {16: (64, 1, 4), 900: (32, 1, 4)})
    arrays = {n: CudaArray(np.zeros(n, np.float32)) for n in (8, 15, 130, 10**6)}
    for nearest, blocks, variant in (("log2", [32, 64, 64, 32], "variant of the nearest key"),
                                     (None, [32] * 4, "first variant")):  # fmt: skip
        caplog.clear()
        mod = load(path, "sm_90a", nearest=nearest)
        for x in arrays.values():
            mod.scale(x, x)
        assert [launch.block[0] for launch in stub_driver.launches()[-4:]] == blocks
        assert {mod.scale.variant(x, x).how for x in arrays.values()} == {"nearest" if nearest else "first"}
        assert caplog.messages == [f"scale(): no key was tuned on this device, so calls launch the {variant}"]


def test_hundreds_of_keys_are_found(tmp_path, stub_driver):
    numbers = random.Random(5).sample(range(-(2**40), 2**40), 300)
    rows = [
        {"function": "f", "gpu": "Stub GPU 0", "key": {"a": a, "b - a": a // 7 - a}, "values": {"B": 32 + number % 5}}
        for number, a in enumerate(numbers)
    ]
    path = tmp_path / "f.json"
    path.write_text(json.dumps({"format": 1, "rows": [{**row, "number": 0, "median_us": 1} for row in rows]}))
    tune = Tune(B=tuple(range(32, 37)), key=("a", "b - a"), nearest="log2")
    mod = jitload.load_inline(
        "keys",
        cuda_sources="__global__ void f(long long a, long long b) {}",
        functions={"f": Launch(grid=1, block="B", tune=tune)},
        arch="sm_90a",
        tuned=str(path),
    )
    for number, a in enumerate(numbers):
        assert mod.f.variant(a, a // 7)[:1] == ({"B": 32 + number % 5},)
        near = mod.f.variant(a + 1, a // 7 + 1)
        assert (near.values, near.how) == ({"B": 32 + number % 5}, "nearest")
    mod.f(numbers[3], numbers[3] // 7)
    assert stub_driver.launches()[-1].block == (35, 1, 1)


RECENT = r"""
__global__ void numbers(long long a, long long b, int* out) { out[0] = blockDim.x; }
__global__ void tensors(const float* x, const float* y, int* out) { out[0] = blockDim.x; }
__global__ void wide(const float* x, const float* y, int* out) { out[0] = blockDim.x; }"""
RECENT_KEYS = {
    "numbers": ("a", "b - a"),
    "tensors": ("x.stride(0)", "y is None or x.shape == y.shape"),
    "wide": ("x.stride(0)", "y.shape[-1]"),  # has more inputs than a call remembers
}


def make_calls() -> list[tuple[str, tuple[Any, ...], tuple[int, int]]]:
    """Return calls of functions, with their keys. Some inputs differ only in a type, a stride or a dimension."""
    x = torch.zeros(8, 8)
    numbers = [(a, b) for a in (0, 1, True, -(2**40)) for b in (0, 1, 5)]
    row, column, part = x[0], x[:, :1], x[:4]
    pairs = [(x, x), (x, None), (part, part), (part, x), (x.T[:4], part), (column, column), (row, row), (row, x)]
    cubes = [torch.zeros(shape) for shape in ((2,) * 6, (2, 2, 2, 2, 2, 3), (2, 3, 2, 2, 2, 2))]
    calls = [("numbers", (a, b), (int(a), b - a)) for a, b in numbers]
    calls += [("tensors", (a, b), (a.stride(0), int(b is None or a.shape == b.shape))) for a, b in pairs]
    return calls + [("wide", (a, b), (a.stride(0), b.shape[-1])) for a in cubes for b in cubes]


def test_calls_with_many_keys_in_turns_launch_the_variant_of_their_key():
    """A call with the inputs of a recent call looks nothing up."""
    calls = make_calls()
    keys = list(dict.fromkeys((name, key) for name, _, key in calls))
    blocks = {case: 1 + number % 8 for number, case in enumerate(keys) if number % 5 != 4}  # others are not tuned
    rows = [
        Row(function=name, gpu="cpu", key=tuple(zip(RECENT_KEYS[name], key, strict=True)), values=(("B", block),),
            number=block - 1, median_us=1.0)
        for (name, key), block in blocks.items()
    ]  # fmt: skip
    options = {"strided": ("x", "y"), "nullable": "y"}
    functions = {
        name: Launch(grid=1, block="B", tune=Tune(B=range(1, 9), key=key), **({} if name == "numbers" else options))
        for name, key in RECENT_KEYS.items()
    }
    tuned = jitload.Tuning(rows)
    mod = jitload.load_inline("recent", cuda_sources=RECENT, functions=functions, arch="cpu", tuned=tuned)

    def call(seed: int) -> list[Any]:
        out = torch.zeros(1, dtype=torch.int32)
        chosen = random.Random(seed).choices(calls, k=400)
        wrong = []
        for name, args, key in [each for each in chosen for _ in range(1 + seed)]:
            mod[name](*args, out)
            if out.item() != blocks.get((name, key), 1):
                wrong.append((name, args, out.item()))
        return wrong

    with ThreadPoolExecutor(4) as pool:
        assert [*pool.map(call, range(4))] == [[]] * 4


def refused(tmp_path: Path, message: str, rows: Any = None, **options: Any) -> None:
    path = tmp_path / "refused.json"
    path.write_text(json.dumps(rows) if not isinstance(rows, str) else rows)
    options = {"arch": "sm_90a", "extra_cuda_cflags": OPTIONS, "tuned": path, **options}
    options.setdefault("functions", {"scale": Launch(**LAUNCH, tune=Tune(**TUNE))})
    with pytest.raises(JitLoadError, match=message):
        jitload.build_inline("refused", cuda_sources=SOURCE, **options)


def test_a_file_that_does_not_fit_is_refused(tmp_path):
    good = {"function": "scale", "gpu": "cpu", "dtypes": {"x": "float32"}, "number": 0, "median_us": 1.0}
    values = {"B": 32, "V": 1, "F": 3}
    refused(tmp_path, r"refused.json is not a file that Tuning.save\(\) wrote", "{}")
    refused(tmp_path, r"has the format 2; this release reads 1", {"format": 2, "rows": []})
    rows = [{**good, "key": {"m": 4}, "values": values}]
    refused(tmp_path, r"has choices by 'm', but the key is 'n': tune again", {"format": 1, "rows": rows})
    refused(tmp_path, r"no function has a Launch\(tune=…\)", {}, functions={"scale": Launch(kernel="scale<float, 1>")})
    refused(tmp_path, "cannot be read: No such file", {}, tuned=tmp_path / "none.json")
    refused(tmp_path, "in 'no_kernels:scale.json' cannot be read: ", {}, tuned="no_kernels:scale.json")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("key", {"n": n}) for n in ("4", 4.5, 2**63)),
        *(("median_us", -1), ("median_us", float("nan")), ("values", {"B": [32]}), ("speed", 1)),
    ],
)
def test_a_row_that_no_measurement_has_is_refused(name, value):
    row = {"function": "scale", "gpu": "cpu", "key": {"n": 4}, "values": {"B": 32}, "number": 0, "median_us": 1.0}
    assert len(read_rows(Tuned("a.json", json.dumps({"format": 1, "rows": [row]})))) == 1
    text = json.dumps({"format": 1, "rows": [{**row, name: value}]})
    with pytest.raises(JitLoadError, match=r"a.json is not a file that Tuning.save\(\) wrote: "):
        read_rows(Tuned("a.json", text))


def test_a_value_that_was_removed_is_not_chosen(stub_driver, tmp_path):
    """The fastest of the variants that are left is chosen, by the same rule as if no other had been measured."""
    path = tmp_path / "removed.json"
    rows = [
        {"function": "scale", "gpu": "Stub GPU 0", "dtypes": {"x": "float32"}, "key": {"n": 8}, "number": number,
         "median_us": us, "values": {"B": block, "V": 1, "F": 3}}
        for number, (block, us) in enumerate([(16, 10.0), (32, 20.2), (64, 20.1), (96, 30.0)])
    ]  # fmt: skip
    path.write_text(json.dumps({"format": 1, "rows": rows}))
    x = CudaArray(np.zeros(8, np.float32))
    modules = [load(path, "sm_90a", B=blocks, when=None) for blocks in ((96, 32, 64), (96, 64), 96)]
    assert [mod.scale.variant(x, x).values["B"] for mod in modules] == [32, 64, 96]


def test_names_and_limits_are_checked(tmp_path):
    options = {"tuned": None, "extra_cuda_cflags": ["-DFACTOR=1"]}
    for launch, message in (
        (Launch(kernel="scale<float, 1>", block="n", tune=Tune(n=1)), "'n' is a value of Tune and also a parameter"),
        (Launch(kernel="scale<float, {V}>", tune=Tune(V=1, W=1)), "tune: the value 'W' stands in no expression of"),
        (Launch(kernel="scale<float, {W}>", tune=Tune(V=(1, 2))), "kernel: there is no value 'W', only V"),
        (Launch(**LAUNCH, tune=Tune(B=2048, V=1, F=1)), "block: must be from 1 to 1024, got 2048"),
    ):
        refused(tmp_path, message, functions={"scale": launch}, **options)
    with pytest.raises(LaunchSpecError, match="dtypes: 'half' is none of the dtypes float32"):
        Launch(kernel="scale<{x.dtype}>", dtypes="half")
    with pytest.raises(LaunchSpecError, match="tune: must be a Tune, got dict"):
        Launch(tune={"B": 1})


def resource_request(tuned: Any) -> dict[str, Any]:
    functions = {"scale": Launch(**LAUNCH, tune=Tune(**TUNE))}
    return {
        "name": "resource", "cuda_sources": SOURCE, "functions": functions, "arch": "sm_90a",
        "extra_cuda_cflags": OPTIONS, "tuned": tuned,
    }  # fmt: skip


def test_a_bundle_has_the_file_beside_the_libraries(cache, tmp_path, monkeypatch, capsys):
    source, bundle = tmp_path / "scale.json", tmp_path / "bundled" / "kernels"
    write(source, "Stub GPU 0", {8: (64, 1, 3)})
    done = jitload.prebuild([resource_request(str(source))], progress=False)
    done.check()
    done.fill_bundle(bundle)
    assert (bundle / "scale.json").read_bytes() == source.read_bytes()
    assert stat.S_IMODE((bundle / "scale.json").stat().st_mode) == 0o644
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("JITLOAD_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("JITLOAD_CACHE_PATH", str(bundle))
    monkeypatch.setenv("JITLOAD_MODE", "load-only")
    path = Path(jitload.build_inline(**resource_request("bundled.kernels:scale.json")))
    assert path.is_relative_to(bundle)
    digest = hashlib.sha256(source.read_bytes()).hexdigest()
    assert main(["inspect", str(path)]) == 0
    assert f"scale is tuned, SHA-256 of the measurements: {digest}" in capsys.readouterr().out
    with pytest.raises(JitLoadError, match=r"tuned"):  # with other choices, it is another library
        jitload.build_inline(**resource_request(None))
    second_path = tmp_path / "other" / "scale.json"
    second_path.parent.mkdir()
    write(second_path, "Stub GPU 0", {9: (64, 1, 3)})
    with pytest.raises(JitLoadError, match=r"scale.json and .*/other/scale.json differ, and have the same name"):
        jitload.prebuild([resource_request(source), resource_request(second_path)], progress=False)


PLANNED = r"""
extern "C" __global__ void f(const void* x, float* y, const float* z, float* w, int n, int k, int m) {
  if ((int)threadIdx.x < m) w[threadIdx.x] = y[threadIdx.x] = ((const float*)x)[threadIdx.x];
}
extern "C" __global__ void plan(int* out, const float* x, int n, long long k) {
  out[0] = n; out[1] = gridDim.x; out[2] = blockDim.x; out[3] = k;
}"""
PLANNED_LAUNCH = Launch(
    grid=("ceil_div(n, 4)", "x.ndim"),
    block="k * 2",
    shared_bytes="n * 4 - 16",
    args={"n": "x.numel()"},
    requires=("n > 2", "k % 2 == 0", "x.shape == z.shape", "y is not None or k < 7"),
    strided=("x", "w"),
    nullable="y",
    raw_pointers="y",
    bounds="check",
)
MEMORY = np.zeros(64, np.float32)
INPUTS: dict[str, list[Any]] = {
    "x": [((8,), (1,)), ((8,), (2,)), ((2, 4), (4, 1)), ((2, 4), (1, 2)), ((2,), (1,)), ((1, 8), (-1, 1))],
    "dtype": ["float32", "int32", "int16", "float64"],
    "y": [8, 6, 3, None, 1 << 20],
    "z": [(8,), (2, 4), (4,), (1, 8)],
    "w": [((8,), (1,)), ((4,), (2,)), ((4,), (1,)), ((2, 4), (0, 2))],
    "k": [2, 4, 8, 3, True],
    "m": [2, 4, 6, 0, True],
    "config": [None, (2, 4), (3, 4), (2, 6), ((2, 1, 1), (4, 1, 2)), (2, 4, 256), (2, 4, 512)],
}


def expected_plan(call: dict[str, Any]) -> tuple[Any, ...] | str:
    """Return the grid, the block, the shared memory and `n` of a launch, or what its error says."""
    (shape, strides), dtype, y, z, w, k, m, config = (call[name] for name in INPUTS)
    n, item = math.prod(shape), {"int16": 2, "float64": 8}.get(dtype, 4)
    if n <= 2 or k % 2 or shape != z or (y is None and k >= 7):
        return "requires"
    grid, block, shared = ((-(-n // 4), len(shape)), k * 2, n * 4 - 16)
    if config is not None:
        grid, block, *more = config
        shared = more[0] if more else shared
    grid, block = (((*e, 1, 1) if isinstance(e, tuple) else (e, 1, 1))[:3] for e in (grid, block))
    count = min(m, block[0])
    last = sum((extent - 1) * stride for extent, stride in zip(shape, strides, strict=True))
    limit = min((last + 1) * item // 4, 1 + sum((extent - 1) * stride for extent, stride in zip(*w, strict=True)))
    if count > limit or (count > (y or 0) and (y is None or y < 100)):
        return "would access"
    return grid, block, shared, n


def check_call(stub_driver: Any, function: Any, call: dict[str, Any]) -> None:
    """Make a call, and compare its launch or its error with what is expected_plan."""
    shape, strides = call["x"]
    x = CudaArray(MEMORY, dtype=call["dtype"], shape=shape, strides=strides, address=1 << 20)
    y = CudaArray(MEMORY, shape=(call["y"],)) if call["y"] in (3, 6, 8) else call["y"]
    w = CudaArray(MEMORY, shape=call["w"][0], strides=call["w"][1])
    arguments = x, y, CudaArray(MEMORY, shape=call["z"]), w, call["k"], call["m"]
    outcome = expected_plan(call)
    stub_driver.clear()
    configured = function if call["config"] is None else function[call["config"]]
    if isinstance(outcome, str):
        with pytest.raises(ValueError, match=outcome):
            configured(*arguments)
        assert not stub_driver.launches(), call
    else:
        configured(*arguments)
        (launch,) = stub_driver.launches()
        n = int.from_bytes(launch.arguments[4], "little")
        assert (launch.grid, launch.block, launch.shared_bytes, n) == outcome, call


def test_a_call_is_planned_and_checked_by_its_own_inputs(stub_driver):
    """The first call of a function is remembered. Each of the others differs from it in one input."""
    functions = {f"f{number}": dataclasses.replace(PLANNED_LAUNCH, kernel="f") for number in range(40)}
    mod = jitload.load_inline("recent_plans", cuda_sources=PLANNED, functions=functions, arch="sm_90a")
    chance = random.Random(38)
    for function in functions:
        first: dict[str, Any] = {}
        while not first or isinstance(expected_plan(first), str):
            first = {name: chance.choice(values) for name, values in INPUTS.items()}
        different = [{**first, name: value} for name, values in INPUTS.items() for value in values]
        for call in [first, first, *chance.sample(different, len(different)), first]:
            check_call(stub_driver, mod[function], call)


def test_what_was_not_checked_on_the_cpu_is_checked_on_the_gpu(stub_driver):
    launch = Launch(grid=1, block="k * 2", requires="x.numel() > 2", bounds="check")
    source = PLANNED.replace("const void* x, float* y, const float* z, float* w, int n", "const float* x, float* y")
    source = source.replace("w[threadIdx.x] = ", "")
    mod = jitload.load_inline("recent_cpu", cuda_sources=source, functions={"f": launch}, arch=("cpu", "sm_90a"))
    x, memory = torch.ones(8), torch.zeros(8)
    mod.f(x, memory[:3], 4, 6)
    assert memory.sum() == 6
    with pytest.raises(ValueError, match="elements 0 to 5 of argument 'y', which has 3"):
        mod.f(CudaArray(x.numpy()), CudaArray(memory[:3].numpy()), 4, 6)
    assert not stub_driver.launches()


def test_threads_that_call_with_other_inputs_get_their_own_plans():
    launch = Launch(grid="ceil_div(n, 4)", block="k", args={"n": "x.numel()"}, requires=("n > 2", "k < 9"))
    mod = jitload.load_inline("recent_threads", cuda_sources=PLANNED, functions={"plan": launch}, arch="cpu")

    def call(seed: int) -> None:
        chance, out = random.Random(seed), torch.zeros(4, dtype=torch.int32)
        for _ in range(40):
            n, k = chance.randint(3, 9), chance.randint(1, 3)
            for _ in range(1 + seed):
                mod.plan(out, torch.empty(n), k)
                assert out.tolist() == [n, -(-n // 4), k, k]

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(call, range(4)))
