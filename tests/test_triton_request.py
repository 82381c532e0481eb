"""`load_triton` without a GPU: what the module shows, variants, launches, frozen choices, and errors."""

import struct

import pytest

pytest.importorskip("triton")

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl
import triton_kernels as kernels
from builds import run_python
from support.arrays import CudaArray
from support.triton import aligned_array, launched
from triton_kernels import tuned_add
from triton_libraries import LIBRARIES
from triton_support import ADD, ARCH, load

import jitload
from jitload.errors import JitLoadError, LaunchSpecError, SignatureError
from jitload.request.variants import source_digest

GRID = "ceil_div(n, BLOCK)"
LOOSE = {name: text.partition(":")[0] for name, text in ADD.items()}


def test_a_module_of_one_kernel():
    mod = load(kernels.vector_add, signature=ADD, BLOCK=1024, grid=GRID)
    assert str(mod.vector_add) == "<jitload function vector_add(*fp32 x_ptr, *fp32 y_ptr, *fp32 out_ptr, i32 n)>"
    assert mod.vector_add.__doc__.startswith("Add two vectors.\n")
    assert list(mod.vector_add.__signature__.parameters) == ["x_ptr", "y_ptr", "out_ptr", "n"]
    assert mod.vector_add.kernel.max_threads == 128
    assert load(kernels.vector_add, signature=ADD, BLOCK=1024, grid=GRID) is mod


def test_real_kernels_become_libraries_that_load_without_triton_and_jitload(tmp_path):
    paths = {}
    for name, (kernel, options) in LIBRARIES.items():
        mod = load(kernel, name=name, build_directory=tmp_path, **options)
        assert list(mod[name].__signature__.parameters) == list(options["signature"]), name
        paths[name] = str(tmp_path / f"{name}.so")
    code = f"import sys, tvm_ffi; print(all(tvm_ffi.load_module(path)[name] for name, path in {paths}.items()), "
    done = run_python(code + "{'triton', 'jitload'} & set(sys.modules))")
    assert (done.stdout, done.stderr) == ("True set()\n", "")


def test_variants_have_names_and_a_dispatcher():
    mod = load(kernels.vector_add, signature=ADD, variants=[{"BLOCK": 512}, {"BLOCK": 1024}], grid=GRID)
    assert list(mod) == ["vector_add", "vector_add__BLOCK_512", "vector_add__BLOCK_1024"]
    with pytest.raises(AttributeError, match=r"chooses one of several kernels: name one of them, mod\['vector"):
        _ = mod.vector_add.kernel
    assert mod.vector_add__BLOCK_512.kernel.symbol == "vector_add"
    mod = load(tuned_add, signature=ADD, variants="all", grid=lambda m: (triton.cdiv(m["n"], m["BLOCK"]),))
    assert list(mod) == ["tuned_add", "tuned_add__BLOCK_512__num_warps_4", "tuned_add__BLOCK_1024__num_warps_8"]
    mod = load(kernels.vector_add, signature=ADD, BLOCK=64, variants=[{}, {"signature": LOOSE}], grid=GRID)
    assert list(mod)[:2] == ["vector_add", "vector_add__variant_0"]
    only = load(kernels.vector_add, signature=ADD, variants=[{"BLOCK": 512}], grid=GRID)
    assert list(only) == ["vector_add"]


def test_extracted_cubins_are_kernels_too():
    options = {"signature": ADD, "BLOCK": 256}
    cubins = [jitload.extract_triton(kernels.vector_add, arch=arch, **options) for arch in ("sm_80", "sm_90")]
    single = jitload.load_triton("single", cubins[1], grid=GRID)
    both = jitload.load_triton("both", cubins, grid=GRID)
    assert list(single) == list(both) == ["vector_add"]
    assert repr(both).startswith("<jitload.Module 'both' (sm_80, sm_90a)")


def test_a_cubin_goes_into_a_wrapper_by_hand():
    cubin = jitload.extract_triton(kernels.square_kernel, signature="*fp32:16, *fp32:16, i32", arch=ARCH)
    wrapper = """
    #include <tvm/ffi/extra/cuda/cubin_launcher.h>
    #include <tvm/ffi/function.h>
    TVM_FFI_EMBED_CUBIN(triton_cubin);
    int Square() {
      static auto kernel = TVM_FFI_EMBED_CUBIN_GET_KERNEL(triton_cubin, "square_kernel");
      return 1;
    }
    TVM_FFI_DLL_EXPORT_TYPED_FUNC(square, Square);
    """
    mod = jitload.load_inline("by_hand", cuda_sources=wrapper, embed_cubin={"triton_cubin": cubin})
    assert list(mod) == ["square"]


HIDDEN = (bytes(8),) * 2


def pointer(array: CudaArray) -> bytes:
    return struct.pack("<Q", array.address)


def numbers(*values: int) -> tuple[bytes, ...]:
    return tuple(struct.pack("<i", value) for value in values)


def test_the_dispatcher_takes_the_first_that_fits(stub_driver):
    types = {"x_ptr": "*fp32", "bias_ptr": "*fp32", "out_ptr": "*fp32", "n": "i32", "stride": "i32"}
    variants = [
        {"BLOCK": 64, "signature": {"bias_ptr": None, "stride": "i32:1"}},
        {"BLOCK": 128, "signature": {"bias_ptr": None}},
        {"BLOCK": 256},
    ]
    mod = load(kernels.optional_bias, signature=types, variants=variants, grid=GRID)
    x, bias = aligned_array(), aligned_array()
    launches = [
        launched(stub_driver, mod.optional_bias, x, optional, x, 1024, stride)
        for optional, stride in ((None, 1), (None, 2), (bias, 1), (bias, 2))
    ]
    assert [launch.grid[0] for launch in launches] == [16, 8, 4, 4]
    assert launches[0].arguments == (pointer(x), pointer(x), *numbers(1024), *HIDDEN)
    assert launches[1].arguments == (pointer(x), pointer(x), *numbers(1024, 2), *HIDDEN)
    assert launches[3].arguments == (pointer(x), pointer(bias), pointer(x), *numbers(1024, 2), *HIDDEN)
    assert launched(stub_driver, mod[list(mod)[2]], x, None, x, 1024, 1).grid == (8, 1, 1)


def test_tuples_scalars_and_a_name_of_its_own(stub_driver):
    signature = {"pair": ("*fp32:16", "*fp32:16", "fp32"), "n": "i32"}
    mod = load(kernels.of_a_tuple, signature=signature, BLOCK=64, grid="ceil_div(n, BLOCK)")
    x, out = aligned_array(), aligned_array()
    launch = launched(stub_driver, mod.of_a_tuple, x, out, 2.5, 100)
    assert launch.arguments == (pointer(x), pointer(out), struct.pack("<f", 2.5), *numbers(100), *HIDDEN)
    for pair in ((x, out, 2.5), kernels.Pair(x, out, 2.5)):
        assert launched(stub_driver, mod.of_a_tuple, pair, 100).arguments == launch.arguments
        assert launched(stub_driver, mod.of_a_tuple[2], pair, 100).grid == (2, 1, 1)
    with pytest.raises(TypeError, match=r"of_a_tuple\(\) takes 4 arguments \(pair_0, pair_1, pair_2, n\), got 2"):
        mod.of_a_tuple((x, out), 100)
    with pytest.raises(TypeError, match="argument 'pair_2' must be a float, got str"):
        mod.of_a_tuple((x, out, "2"), 100)
    sized = {"pair": ("*fp32:16", "*fp32:16", tl.constexpr(64)), "n": "i32"}
    mod = load(kernels.of_a_sized_tuple, signature=sized, grid="ceil_div(n, pair_2)")
    launch = launched(stub_driver, mod.of_a_sized_tuple, (x, out, 64), 100)
    assert (launch.arguments, launch.grid[0]) == ((pointer(x), pointer(out), *numbers(100), *HIDDEN), 2)
    with pytest.raises(ValueError, match=r"'pair_2' must be 64, with which the kernel was compiled, got 32"):
        mod.of_a_sized_tuple((x, out, 32), 100)
    assert launched(stub_driver, mod.of_a_sized_tuple, x, out, 100).arguments == launch.arguments
    mod = load(kernels.of_a_tuple, signature={**sized, "pair": ("*fp32", "*fp32", tl.constexpr(0))}, BLOCK=64, grid=1)
    assert launched(stub_driver, mod.of_a_tuple, (x, out, 0), 100).arguments == launch.arguments
    mod = load(kernels.store_scalar, signature={"out_ptr": "*fp64", "x": "bf16"}, grid=1)
    assert launched(stub_driver, mod.store_scalar, aligned_array(dtype="float64"), 1.5).arguments[1] == b"\xc0\x3f"
    mod = load(kernels.with_repr, signature={"x_ptr": "*fp32", "n": "i32"}, BLOCK=64, grid=2)
    assert launched(stub_driver, mod.with_repr, x, 100).kernel == "renamed_64"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"variants": [{"BLOCK": 64}, {"BLOCK": 32}, {"BLOCK": 64}]},
         "variants[0] and variants[2] are the same (BLOCK=64"),
        ({"variants": "some", "BLOCK": 4}, "variants= must be a list of mappings, or 'all', got 'some'"),
        ({"variants": "all"}, "variants='all' is for autotuned kernels, and this one has no configurations"),
        ({"variants": [{"BLOCK": 4}], "config": {"BLOCK": 8}}, "config= chooses one configuration, and variants="),
        ({"variants": [{"BLOCK": 4}, {"BLOCK": 8}], "BLOCK": 2}, "each of the variants has a 'BLOCK' of its own"),
        ({"variants": [triton.Config({"BLOCK": 4})], "num_warps": 8}, "so num_warps=8 beside variants= would not"),
        ({"variants": [{"signature": "*fp32"}], "BLOCK": 4}, "a variant's 'signature' maps some parameters to other"),
    ],
)  # fmt: skip
def test_bad_variants(options, expected):
    with pytest.raises(SignatureError) as caught:
        load(kernels.vector_add, signature=ADD, grid=GRID, **options)
    assert expected in str(caught.value)


def test_bad_grids():
    for grid, words in (("ceil_div(n, BLOK)", "there is no parameter 'BLOK'"), (1.5, "grid")):
        with pytest.raises(LaunchSpecError, match=words):
            load(kernels.vector_add, signature=ADD, BLOCK=64, grid=grid)


def test_bad_names_and_kernels():
    with pytest.raises(JitLoadError, match="must have 1 to 256 printable characters"):
        load(kernels.vector_add, name="", signature=ADD, BLOCK=64)
    with pytest.raises(SignatureError, match="is a plain function: decorate it"):
        load(test_bad_grids, signature=ADD)
    plain = jitload.compile_cubin('extern "C" __global__ void k(int n) {}', arch="sm_90a")
    with pytest.raises(JitLoadError, match="the Cubin was not made from a Triton kernel: pass what extract_triton"):
        jitload.load_triton("m", plain)
    cubin = jitload.extract_triton(kernels.vector_add, signature=ADD, BLOCK=64, arch=ARCH)
    with pytest.raises(SignatureError, match="is compiled already, so num_warps= cannot change it"):
        jitload.load_triton("m", cubin, num_warps=2)
    with pytest.raises(SignatureError, match="is compiled for sm_90a, so arch= cannot make it run on sm_80"):
        jitload.load_triton("m", cubin, arch=("sm_80", "sm_90"))
    with pytest.raises(SignatureError, match="two of the cubins are for sm_90a: pass one for each"):
        jitload.load_triton("m", [cubin, cubin])


# ---- choices among the configurations of an autotuned kernel --------------------------------------------------------


def write_choices(path: Path, choices: dict[int, int]) -> Path:
    values = [row["values"] for row in load_tuned_add().tuned_add._jitload_facts["tune"]["variants"].values()]
    rows = [
        {"function": "tuned_add", "gpu": "Stub GPU 0", "key": {"n": n}, "values": values[number], "number": number,
         "median_us": 1.0}
        for n, number in choices.items()
    ]  # fmt: skip
    path.write_text(json.dumps({"format": 1, "rows": rows}))
    return path


def load_tuned_add(**options: Any) -> jitload.Module:
    return load(tuned_add, **{"signature": LOOSE, "variants": "all", "grid": GRID, **options})


def test_the_key_of_the_decorator_chooses_a_configuration(tmp_path, stub_driver):
    mod = load_tuned_add(tuned=write_choices(tmp_path / "add.json", {1000: 1, 2000: 0}), nearest="log2")
    x = aligned_array()
    for n, block, how in ((1000, 1024, "tuned"), (1400, 1024, "nearest"), (10**6, 512, "nearest")):
        mod.tuned_add(x, x, x, n)
        assert stub_driver.launches()[-1].block == (block // 4, 1, 1)
        assert stub_driver.launches()[-1].grid == (-(-n // block), 1, 1)
        chosen = mod.tuned_add.variant(x, x, x, n)
        assert (chosen.values["BLOCK"], chosen.how, chosen.key) == (block, how, {"n": n})
    elsewhere = mod.tuned_add.variant(CudaArray(np.zeros(4, np.float32), device=1), x, x, 1000)
    assert (elsewhere.values["BLOCK"], elsewhere.how) == (1024, "nearest")  # a GPU that the file does not have


def test_the_choice_is_in_the_key_of_the_library(tmp_path):
    paths = {
        str(load_tuned_add(tuned=tuned).tuned_add._jitload_library.origin)
        for tuned in (None, write_choices(tmp_path / "a.json", {7: 1}), write_choices(tmp_path / "b.json", {7: 0}))
    }
    assert len(paths) == 3


def test_a_file_for_another_source_of_the_kernel_causes_a_warning(tmp_path, caplog):
    function = load_tuned_add(tuned=write_choices(tmp_path / "add.json", {7: 1})).tuned_add
    digest = source_digest(function._jitload_library.request, "tuned_add", None)
    for source, warned in (("", 0), (digest, 0), ("old", 1)):
        path = write_choices(tmp_path / f"{len(source)}.json", {7: 1})
        path.write_text(path.read_text().replace('"median_us"', f'"source": "{source}", "median_us"'))
        load_tuned_add(tuned=path)
        messages = [text for text in caplog.messages if "was measured with another source" in text]
        assert len(messages) == warned


def test_a_file_for_one_configuration_is_refused(tmp_path):
    with pytest.raises(LaunchSpecError, match="there is only one: pass variants='all'"):
        load_tuned_add(tuned=write_choices(tmp_path / "add.json", {7: 1}), variants=None, config={"BLOCK": 512})


def test_the_decorator_builds_the_best_configurations_of_its_model(monkeypatch, caplog):
    monkeypatch.setattr(tuned_add, "perf_model", lambda *, n, BLOCK, **_: abs(BLOCK - n))
    monkeypatch.setattr(tuned_add, "configs_top_k", 1)
    example = torch.empty(64, device="meta")
    words = {"variants": "all", "grid": GRID, "arch": ARCH}
    for n, block in ((512, 512), (1024, 1024)):
        mod = jitload.load_triton("p", tuned_add, example, example, example, n=n, **words)
        assert mod.tuned_add._jitload_facts["triton"]["constexprs"]["BLOCK"] == block
        assert mod.tuned_add._jitload_facts["triton"]["variants"] == ["tuned_add"]
    assert not caplog.messages
    load_tuned_add()
    assert caplog.messages == ["tuned_add: prune_configs_by is not used, because there are no example arguments"]


@pytest.mark.gpu
@pytest.mark.usefixtures("gpu")
def test_configurations_are_tuned_on_a_gpu(tmp_path):
    mod = jitload.load_triton("g", tuned_add, signature=LOOSE, variants="all", grid=GRID)
    x, y = torch.rand(2, 1 << 20, device="cuda")
    out = torch.empty_like(x)
    options = {"reference": lambda x, y, out, n: x + y, "outputs": ["out_ptr"], "seconds": 0.2, "progress": False}
    tuning = mod.tuned_add.tune(x, y, out, x.numel(), **options)
    assert [row.reason for row in tuning.rows] == ["", ""]
    assert all(row.registers and row.occupancy for row in tuning.rows)
    path = tuning.save(tmp_path / "add.json")
    frozen = jitload.load_triton("g", tuned_add, signature=LOOSE, variants="all", grid=GRID, tuned=path)
    frozen.tuned_add(x, y, out, x.numel())
    assert torch.equal(out, x + y)
    assert frozen.tuned_add.variant(x, y, out, x.numel()).values == dict(tuning.best.values)
