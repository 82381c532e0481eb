"""An object instead of a library: a link of the user's own makes a library of it that works."""

import subprocess
from pathlib import Path
from typing import Any

import pytest
from builds import ADD, ARCH, EXPORT, ROOT

import jitload
from jitload.elf.file import read_dynamic_symbols
from jitload.errors import JitLoadError, LoadError

CUBIN = (ROOT / "tests" / "data" / "stub_kernels.sm_90.cubin").read_bytes()
WRAPPER = """\
#include <tvm/ffi/extra/cuda/cubin_launcher.h>
TVM_FFI_EMBED_CUBIN(first);
void Run() { static auto kernel = TVM_FFI_EMBED_CUBIN_GET_KERNEL(first, "empty"); }
int twice(int n) { return 2 * n; }
TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, Run);
"""
HIDDEN = 'extern "C" __attribute__((visibility("hidden"))) int extra();\n'


def link(built: str, tmp_path: Path, *objects: str) -> Path:
    """Link as a user does: with the compiler, and nothing of jitload's."""
    library = tmp_path / "own.so"
    subprocess.run(["c++", "-shared", built, *objects, "-o", str(library)], check=True)
    return library


def test_kernels_alone_become_no_object(tmp_path):
    with pytest.raises(JitLoadError, match=r"m\.o: only hand-written C\+\+ is built as an object; write output=m\.so"):
        jitload.build_inline("m", cuda_sources=ADD, arch=ARCH, output=tmp_path / "m.o")


def test_an_object_of_cpp_by_hand_becomes_a_library(tmp_path):
    (tmp_path / "extra.cc").write_text('extern "C" int extra() { return 5; }\n')
    subprocess.run(["c++", "-fPIC", "-c", "extra.cc"], cwd=tmp_path, check=True)
    text = HIDDEN + "int sum(int n) { return n + extra(); }\n" + WRAPPER
    options = {"functions": ["twice", "sum"], "embed_cubin": {"first": CUBIN}, "output": tmp_path / "deep" / "m.o"}
    built = jitload.build_inline("m", cuda_sources=text, **options)
    library = link(built, tmp_path, str(tmp_path / "extra.o"))
    module = jitload.load_module(library)
    assert (module.twice(21), module.sum(1)) == (42, 6)
    assert "run" in list(module)
    assert CUBIN in library.read_bytes()
    assert not [name for name in read_dynamic_symbols(library.read_bytes()).defined if "jitload" in name]


def cpp_object(name: str, text: str, tmp_path: Path, **more: Any) -> str:
    """Build an object of C++ by hand."""
    return jitload.build_inline(name, cpp_sources=text, output=tmp_path / f"{name}.o", **more)


def launching(name: str) -> str:
    """Return C++ that needs the launcher, and the driver by name."""
    return f"""\
#include <cuda.h>
#include <tvm/ffi/extra/cuda/cubin_launcher.h>
TVM_FFI_EMBED_CUBIN({name});
int has_{name}() {{ return cuDriverGetVersion != nullptr; }}
void run_{name}() {{ static auto kernel = TVM_FFI_EMBED_CUBIN_GET_KERNEL({name}, "no_such"); }}
"""


def test_a_library_holds_any_number_of_objects(tmp_path):
    objects = [
        cpp_object(name, launching(name), tmp_path, functions=[f"run_{name}", f"has_{name}"], embed_cubin={name: CUBIN})
        for name in ("one", "two")
    ]
    module = jitload.load_module(link(objects[0], tmp_path, objects[1]))
    assert sorted(module) == ["has_one", "has_two", "run_one", "run_two"]
    assert (module.has_one(), module.has_two()) == (1, 1)
    again = jitload.load("again", sources=objects)
    assert sorted(again) == ["has_one", "has_two", "run_one", "run_two"]


def test_an_object_that_is_damaged_is_named(tmp_path):
    (tmp_path / "bad.o").write_bytes(b"not what it was")
    with pytest.raises(LoadError, match=r"bad\.o is not an object file that can be linked: it begins with b'not what'"):
        jitload.build("m", sources=[tmp_path / "bad.o"], output=tmp_path / "m.o")


def test_a_c_file_becomes_an_object_and_the_object_a_library(tmp_path):
    (tmp_path / "plain.c").write_text(EXPORT.replace("VALUE", "2"))
    built = jitload.build("plain", sources=[tmp_path / "plain.c"], output="plain.o", build_directory=tmp_path / "deep")
    assert built == str(tmp_path / "deep" / "plain.o")
    assert jitload.load("two", sources=[built]).get() == 2


def test_a_function_for_tvm_ffi_need_not_say_that_it_is_visible(tmp_path):
    text = """\
extern "C" int __tvm_ffi_seven(void*, const TVMFFIAny*, int32_t, TVMFFIAny* result) {
  *result = {kTVMFFIInt, {0}, {7}};
  return 0;
}
extern "C" int hidden() { return 1; }
"""
    library = link(jitload.build_inline("m", cpp_sources=text, output=tmp_path / "m.o"), tmp_path)
    assert jitload.load_module(library).seven() == 7
    assert "hidden" not in read_dynamic_symbols(library.read_bytes()).defined
