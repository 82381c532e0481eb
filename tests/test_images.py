"""Functions made of cubins that came without their source, typed by their symbols and by signatures."""

import struct
from pathlib import Path

import numpy as np
import pytest
from builds import ADD
from support.arrays import CudaArray, tensor_of

import jitload
from jitload import Launch
from jitload.errors import JitLoadError, LaunchSpecError, LoadError, SignatureError

SCALE = Launch(signature="void scale(float* x, float factor, int n)", grid="ceil_div(n, 128)", block=128)


def load(cubin, functions=None, **options):
    return jitload.load_inline("given", embed_cubin={"k": cubin}, functions=functions, **options)


def test_a_signature_makes_a_typed_function(cubin, stub_driver):
    module = load(cubin, {"scale": SCALE})
    assert repr(module) == "<jitload.Module 'given' (sm_90a): scale(float* x, float factor, int n)>"
    x = CudaArray(np.zeros(300, np.float32))
    module.scale(tensor_of(x), 2.0, 300)
    (launch,) = stub_driver.launches()
    assert (launch.kernel, launch.grid, launch.block) == ("scale", (3, 1, 1), (128, 1, 1))
    assert launch.arguments == (struct.pack("Q", x.address), struct.pack("f", 2), struct.pack("i", 300))
    with pytest.raises(TypeError, match="argument 'x' must be a float32 CUDA tensor, got int32"):
        module.scale(tensor_of(CudaArray(np.zeros(300, np.int32))), 2.0, 300)


def test_a_symbol_tells_its_types_by_itself(cubin):
    module = load(cubin.data, {"ints": Launch(kernel="fill<int>"), "doubles": Launch(kernel="_Z4fillIdEvPT_S0_")})
    assert repr(module).endswith(" (sm_90a): ints(int* arg0, int arg1); doubles(double* arg0, double arg1)>")


def test_a_cubin_from_source_keeps_its_types():
    assert "add(const float* x, float* y, int n)" in repr(load(jitload.compile_cubin(ADD, arch="sm_80")))


def test_files_of_several_architectures_are_one_module(tmp_path, ptx):
    for arch in ("sm_80", "sm_90a"):
        (tmp_path / f"k.{arch}.cubin").write_bytes(jitload.compile_cubin(ptx, arch=arch).data)
    files = sorted(tmp_path.glob("*.cubin"))
    module = jitload.load("files", sources=files, functions={"scale": SCALE})
    assert repr(module) == "<jitload.Module 'files' (sm_80, sm_90a): scale(float* x, float factor, int n)>"
    before = jitload.build("files", sources=files, functions={"scale": SCALE})
    files[0].write_bytes(jitload.compile_cubin(ptx, arch="sm_86").data)
    assert jitload.build("files", sources=files, functions={"scale": SCALE}) != before


def test_what_is_wrong_with_given_cubins(cubin, ptx):
    older, other = jitload.compile_cubin(ptx, arch="sm_80"), jitload.compile_cubin(ADD, arch="sm_80")
    fill = {"s": Launch(kernel="fill<int>")}
    cases = [
        ({"k": cubin}, None, SignatureError, "kernel 'scale': the types of its parameters are unknown"),
        ({"k": cubin}, {"none": Launch()}, LaunchSpecError, "functions: there is no kernel 'none'"),
        ({"k": cubin}, {"f": Launch(kernel="fill<long>")}, LaunchSpecError, "there is no kernel 'fill<long>'"),
        ({"k": ptx}, None, LoadError, r"^embed_cubin\['k'\]: these bytes are PTX: compile it with compile_cubin"),
        ({"a": cubin, "b": cubin}, None, JitLoadError, r"embed_cubin\['a'\] and embed_cubin\['b'\] are both for sm_9"),
        ({"a": cubin, "b": other}, fill, LaunchSpecError, "Make one module for each architecture"),
    ]
    for cubins, functions, error, words in cases:
        with pytest.raises(error, match=words):
            jitload.build_inline("m", embed_cubin=cubins, functions=functions)
    with pytest.raises(JitLoadError, match="has no cubin for sm_80, only for sm_90a"):
        load(cubin, {"scale": SCALE}, arch="sm_80")
    assert Path(jitload.build_inline("m", embed_cubin={"a": cubin, "b": older}, functions=fill)).is_file()


def test_no_nvrtc_is_needed(cubin, monkeypatch, tmp_path):
    monkeypatch.setenv("JITLOAD_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("JITLOAD_NVRTC", "/nowhere")
    assert Path(jitload.build_inline("bare", embed_cubin={"k": cubin}, functions={"scale": SCALE})).is_file()


def test_keywords_that_need_source_are_refused(cubin, tmp_path):
    with pytest.raises(JitLoadError, match="the architecture is that of the cubins"):
        load(cubin, {"scale": SCALE}, sanitize="address")
    flags = {"extra_cflags": ["-Iinclude"], "extra_cuda_cflags": ["-DN=4"], "extra_ldflags": ["-lm"]}
    switches = {"debug": True, "kind": "device", "fast_compile": True, "extra_include_paths": tmp_path}
    for name, value in {**flags, **switches}.items():
        with pytest.raises(JitLoadError, match=f"{name}= is for sources, but cubins are compiled already"):
            load(cubin, {"scale": SCALE}, **{name: value})
    (tmp_path / "rows.json").write_text('{"jitload": "tuned", "version": 1, "functions": {}}')
    with pytest.raises(LaunchSpecError, match="chooses variants, but no function has a Launch"):
        load(cubin, {"scale": SCALE}, tuned=tmp_path / "rows.json")
