"""Hand-written C++: what is refused before the compiler runs, the built library, its link, and objects in its place."""

import importlib.util
import json
import platform
import pydoc
import re
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tvm_ffi
from builds import ADD, ARCH, EXPORT, ROOT, run_python
from support.wrappers import undefined_symbols

import jitload
from jitload import Launch
from jitload.elf.file import read_dynamic_symbols
from jitload.errors import CompileError, JitLoadError, LaunchSpecError, LoadError
from jitload.host_cpp import link
from jitload.host_cpp.embedding import missing_cubin_hint
from jitload.host_cpp.link import find_driver_calls
from jitload.model import Cubin
from jitload.request.arguments import Call, read_options
from jitload.request.cubins import read_embedded_cubins
from jitload.request.request import make_request
from jitload.request.sources import Sources
from jitload.sources.common import Tools, library_key
from jitload.toolchain.host import Compiler

CUBIN = (ROOT / "tests" / "data" / "stub_kernels.sm_90.cubin").read_bytes()
EMBED = """\
#include <tvm/ffi/extra/cuda/cubin_launcher.h>
TVM_FFI_EMBED_CUBIN(first);
void Run() { static auto kernel = TVM_FFI_EMBED_CUBIN_GET_KERNEL(first, "empty"); }
TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, Run);
"""
ADD_CPP = "int add(int a, int b) { return a + b; }"


def build(name="m", **options):
    return Path(jitload.build_inline(name, **options))


TWO = {"cuda_sources": ADD, "cpp_sources": "TVM_FFI_EMBED_CUBIN(m);"}
INVALID = [
    ({"embed_cubin": {"first": b""}}, LoadError, "embed_cubin['first']: the cubin is empty."),
    ({"embed_cubin": {"first": ".version 8.0\n.target sm_90"}}, LoadError, "embed_cubin['first']: these bytes are PTX"),
    ({"embed_cubin": {"first": "/no/such.cubin"}}, JitLoadError, "cannot be read as a file: [Errno 2] No such file"),
    ({"embed_cubin": {"first": SimpleNamespace()}}, JitLoadError, "must be bytes, a path or a Cubin, got SimpleNamesp"),
    ({"embed_cubin": {"a-b": CUBIN}}, JitLoadError, "a cubin is embedded as 'a-b', which is not a C++ name"),
    ({"embed_cubin": {"first": CUBIN, "two": CUBIN}}, JitLoadError, "the C++ has no TVM_FFI_EMBED_CUBIN(two)"),
    ({"embed_cubin": {"first": CUBIN}, "cuda_sources": ADD}, JitLoadError, "has no TVM_FFI_EMBED_CUBIN(first)"),
    ({**TWO, "cpp_sources": ADD_CPP, "arch": ARCH}, JitLoadError, "the C++ has no TVM_FFI_EMBED_CUBIN(m)\n    C++"),
    ({**TWO, "name": "a b", "arch": ARCH}, JitLoadError, "under the module's name, 'a b', which is not a C++ name"),
    ({**TWO, "arch": ("sm_80", "sm_90")}, JitLoadError, "so it takes one architecture, not sm_80, sm_90"),
    ({"cuda_sources": ADD, "embed_cubin": {"c": CUBIN}, "kind": "device"}, JitLoadError, "no C++ that launches them:"),
    ({"kind": "both"}, JitLoadError, "kind must be 'device', 'host', 'mixed' or None, got 'both'"),
    ({"embed_cubin": {"first": CUBIN}, "functions": {"run": Launch(grid=1)}}, LaunchSpecError, "Launch.grid: is for"),
]


@pytest.mark.parametrize(("options", "error", "words"), INVALID, ids=[words for _, _, words in INVALID])
def test_errors_are_raised_before_the_compiler_runs(options, error, words, monkeypatch):
    monkeypatch.setattr("jitload.host_cpp.library.run_ninja", lambda *_, **__: pytest.fail("the compiler ran"))
    with pytest.raises(error, match=re.escape(words)) as caught:
        build(**{"cuda_sources": EMBED, **options})
    assert type(caught.value) is error


def test_a_cubin_that_is_missing_is_named():
    with pytest.raises(CompileError) as caught:
        build(cuda_sources=EMBED)
    assert caught.value.hint == "TVM_FFI_EMBED_CUBIN(first) has no cubin: pass it as embed_cubin={'first': …}."
    assert missing_cubin_hint("ld: multiple definition of `__tvm_ffi__cubin_first'; m.o: first defined here") == ""


def test_a_cubin_may_be_bytes_or_a_path_or_an_object_that_has_one(tmp_path):
    path = tmp_path / "k.cubin"
    path.write_bytes(CUBIN)
    cubin = Cubin(data=CUBIN, arch="sm_90")
    cubins = {
        "bytes": CUBIN, "bytearray": bytearray(CUBIN), "memoryview": memoryview(CUBIN),
        "numpy": np.frombuffer(CUBIN, np.uint8), "path": path, "str": str(path),
        "cubin": cubin, "compiled": SimpleNamespace(asm={"ptx": ".version", "cubin": CUBIN}, kernel=CUBIN),
        "older": SimpleNamespace(kernel=CUBIN), "extracted": SimpleNamespace(cubin=cubin, warmup=print),
    }  # fmt: skip
    assert read_embedded_cubins(cubins) == tuple((name, CUBIN) for name in sorted(cubins))


def test_functions_are_exported_with_their_docs():
    doc = 'Add "two"\n\tints \\ größer??!'
    module = jitload.load_inline("m", cpp_sources=[ADD_CPP, "int twice(int a) { return 2 * a; }"], functions={
        "add": doc, "twice": None,
    })  # fmt: skip
    assert (module.add(1, 2), module.twice(4)) == (3, 8)
    assert list(module) == ["add", "twice"]
    assert {"add", "twice"} <= set(dir(module))
    assert repr(module) == "<jitload.Module 'm': add(…); twice(…)>"
    assert module.get_function_doc("add") == doc
    assert module.get_function_doc("twice") is None
    for function in (module.add, module["add"], module.get_function("add")):
        assert (function.__doc__, function.__name__) == (doc, "add")
        assert type(function) is tvm_ffi.Function  # a class of ours would take longer to call
    assert "ints \\ größer??!" in pydoc.plain(pydoc.render_doc(module.add))


def test_an_error_names_the_piece_and_its_own_line():
    broken = "\n\n\n\n\n\nint f() { return twise(1); }"
    with pytest.raises(CompileError) as caught:
        build(cuda_sources=["int one() { return 1; }", broken], functions="f")
    (diagnostic,) = [message for message in caught.value.diagnostics if message.severity == "error"]
    assert (caught.value.stage, diagnostic.file, diagnostic.line) == ("host", "cuda_sources[1]", 7)
    with pytest.raises(CompileError, match=r"'m': functions\['g'\]:1: .*g.* not declared"):
        build(cpp_sources=ADD_CPP, functions="g")


def test_cpp_sources_and_cuda_sources_are_one_library(tmp_path):
    """Two texts, several cubins, options, both spellings of CUDA's types, and no undefined symbol of CUDA."""
    (tmp_path / "seven.h").write_text("#define SEVEN 7\n")
    cpp = "int seven(); int next() { return seven() + ONE; } TVM_FFI_EMBED_CUBIN(second);\n"
    cuda = EMBED + "int seven() { CUresult a = CUDA_SUCCESS; cudaError b = cudaSuccess; return SEVEN + ZERO + a + b; }"
    library = build(
        "two",
        cpp_sources="#include <tvm/ffi/extra/cuda/cubin_launcher.h>\n" + cpp,
        cuda_sources=cuda,
        functions="next",
        embed_cubin={"first": CUBIN, "second": jitload.compile_cubin(ADD, arch=ARCH)},
        extra_cflags=["-DONE=1"],
        extra_ldflags=["-lcuda", "-lcudart"],
        extra_cuda_cflags=[
            *("--system-include", str(tmp_path), "-include", "seven.h"),
            *("-Xcompiler", "-fno-math-errno,-DZERO=0", "--use_fast_math", "-arch=sm_90"),
        ],
        backend="cuda",
    )
    module = jitload.load_module(library)
    assert module.next() == 8
    assert list(module) == ["next", "run"]
    needed = read_dynamic_symbols(library.read_bytes()).undefined
    assert not [name for name in needed if name.startswith(("cu", "jitload", "__tvm_ffi__cubin"))]
    assert "cubins.o: step2 cubins.s | first.cubin second.cubin" in (library.parent / "build.ninja").read_text()


def test_kernels_beside_cpp_are_embedded_under_the_modules_name():
    cpp = EMBED.replace("first", "mixed").replace("empty", "add")
    library = build("mixed", cuda_sources=ADD, cpp_sources=cpp, arch=ARCH)
    assert list(jitload.load_module(library)) == ["run"]
    assert (library.parent / "mixed.cubin").read_bytes() in library.read_bytes()


def test_a_header_is_recorded_and_may_hold_the_macro(tmp_path):
    header = tmp_path / "my cubins.h"
    header.write_text("#include <tvm/ffi/extra/cuda/cubin_launcher.h>\nTVM_FFI_EMBED_CUBIN(first);\nconst int k = 1;\n")
    options = {
        "cuda_sources": '#include "my cubins.h"\nint f() { return k; }', "functions": "f",
        "embed_cubin": {"first": CUBIN}, "extra_include_paths": [tmp_path],
    }  # fmt: skip
    library = build(**options)
    recorded = json.loads((library.parent / "manifest.json").read_text())["dependencies"]
    assert [file["path"] for file in recorded if file["size"] >= 0] == [f"@0/{header.name}"]
    assert build(**options) == library
    header.write_text(header.read_text().replace("k = 1", "k = 22"))
    assert jitload.load_inline("m", **options).f() == 22


def test_functions_of_the_cuda_runtime_get_the_wheels_library(tmp_path):
    code = "#include <cuda_runtime.h>\nint f() { int v = 0; cudaRuntimeGetVersion(&v); return v; }"
    library = build(cuda_sources=code, functions="f", kind="host")
    assert jitload.load_module(library).f() // 1000 in (12, 13)


def test_files_are_compiled_unchanged(tmp_path):
    (tmp_path / "one.h").write_text("int one();\n")
    (tmp_path / "one.c").write_text("int one_c(void) { int class = 1; return class; }\n")
    export = "TVM_FFI_DLL_EXPORT_TYPED_FUNC"
    code = f'#include <tvm/ffi/function.h>\n#include "one.h"\nextern "C" int one_c();\n{export}(one, one_c);\n'
    (tmp_path / "w.cc").write_text(code)
    (tmp_path / "first.cubin").write_bytes(CUBIN)
    (tmp_path / "e.cpp").write_text("#include <tvm/ffi/extra/cuda/cubin_launcher.h>\nTVM_FFI_EMBED_CUBIN(first);\n")
    names = ("one.c", "w.cc", "e.cpp", "first.cubin")
    module = jitload.load("files", sources=[tmp_path / name for name in names], functions="one")  # which is exported
    assert (list(module), module.one()) == (["one"], 1)
    with pytest.raises(LaunchSpecError, match="functions: no file defines a host function 'two'"):
        jitload.build("files", sources=[tmp_path / name for name in names], functions="two")


def test_the_launcher_is_linked_if_an_object_calls_it(tmp_path):
    """Here the source does not show that; a library that does not call the launcher is linked without it."""
    (tmp_path / "kernels.h").write_text("#include <tvm/ffi/extra/cuda/cubin_launcher.h>\n")
    text = "#include <kernels.h>\nvoid f(tvm::ffi::Bytes data) { tvm::ffi::CubinModule module(data); }"
    library = build(cpp_sources=text, functions="f", extra_include_paths=[tmp_path])
    assert "launcher.o" in (library.parent / "build.ninja").read_text()
    assert list(jitload.load_module(library)) == ["f"]
    library = build(cpp_sources=ADD_CPP, functions="add")
    assert "launcher.o" not in (library.parent / "build.ninja").read_text()
    assert jitload.load_module(library).add(1, 2) == 3


def key(text=EMBED, *, cubins=None, cpp=(), objects=(), **flags):
    sources = Sources(cuda=(("m.cu", text),), host=cpp, objects=objects, cubins=cubins or {"first": CUBIN})
    options = read_options(**{f"extra_{name}": value for name, value in flags.items()})
    call = Call("m", sources, makes="library", options=options, arch=ARCH)
    request = make_request(call)
    return library_key(request, Tools(), "").digest


def test_everything_is_in_the_key(monkeypatch):
    different = [
        key(EMBED + " "),
        key(cpp=(("m.cpp", ADD_CPP),)),
        key(cflags=["-DA", "-DB"]),
        key(cflags=["-DB", "-DA"]),
        key(ldflags=["-DA", "-DB"]),
        key(objects=("a.o",)),
        key(cubins={"second": CUBIN}),
        key(cubins={"first": CUBIN + b" "}),
        key(cubins={"first": CUBIN, "second": CUBIN}),
    ]
    assert len({key(), *different}) == 10
    assert key(cflags=["-DA -DB"]) == key(cflags=["-DA", "-DB"])  # one string with two options is two options
    before = key()
    monkeypatch.setattr("jitload.sources.host.tvm_ffi_version", lambda: "0")
    assert key() != before


def test_the_header_of_a_type_of_cudas_is_named():
    with pytest.raises(CompileError, match=r"#include <cuda_fp16\.h> declares CUDA.s types of this kind: __half"):
        jitload.build_inline("m", cpp_sources="int f() { return sizeof(half); }", functions="f")


EXPORTED_ADD = "int add(int a, int b) { return a + b; }\nTVM_FFI_DLL_EXPORT_TYPED_FUNC(add, add);"
needs_gold = pytest.mark.skipif(
    platform.machine() != "x86_64" or shutil.which("ld.gold") is None, reason="needs GNU gold on x86-64"
)


@needs_gold
@pytest.mark.parametrize("works", [True, False])
def test_gold_is_tried_once_for_each_compiler(works, tmp_path):
    """gold fails with some relocated compilers, in whose directories links to libraries dangle."""
    script = tmp_path / "g++"
    refuse = "" if works else 'case "$*" in *gold*) exit 1;; esac\n'
    script.write_text(f'#!/bin/sh\necho "$@" >>{tmp_path}/log\n{refuse}exec g++ "$@"\n')
    script.chmod(0o755)
    compiler = Compiler(command=(str(script),), path=script)
    assert [link.fast_linker(compiler, (), tmp_path) for _ in range(2)] == [("-fuse-ld=gold",) * works] * 2
    assert (tmp_path / "log").read_text().count("-fuse-ld=gold") == 1


@needs_gold
def test_gold_links():
    path = Path(jitload.build_inline("gold", cpp_sources=EXPORTED_ADD))
    assert "-fuse-ld=gold" in (path.parent / "build.ninja").read_text()
    assert jitload.load_module(path).add(2, 3) == 5


def test_a_fast_linker_that_fails_is_not_needed(monkeypatch):
    monkeypatch.setattr(link, "fast_linker", lambda *_: ("-Wl,--no-such-option",))
    path = Path(jitload.build_inline("fast", cpp_sources=EXPORTED_ADD))
    assert "--no-such-option" not in (path.parent / "build.ninja").read_text()
    assert jitload.load_module(path).add(2, 3) == 5


def test_an_undefined_function_is_named():
    text = "namespace ns { int nobody(int, const char*); }\nint f() { return ns::nobody(1, nullptr); }"
    with pytest.raises(LoadError, match=r"u\.so needs ns::nobody\(int, char const\*\), which is not defined by any"):
        jitload.load_inline("u", cpp_sources=text, functions="f")
    with pytest.raises(LoadError, match=r"u\.so needs in_c, which .* \(for C, declare it extern \"C\"\)"):
        jitload.load_inline("u", cpp_sources='extern "C" int in_c(); int f() { return in_c(); }', functions="f")


def test_symbols_of_other_libraries_are_found_at_load(tmp_path):
    (tmp_path / "own.c").write_text("int own(void) { return 4; }\n")
    subprocess.run(["cc", "-shared", "-fPIC", "own.c", "-o", "libown.so"], cwd=tmp_path, check=True)
    text = """\
#include <cmath>
#include <thread>
extern "C" int own(); extern "C" int Py_IsInitialized();
int f(int n) { int r = 0; std::thread([&] { r = own() + Py_IsInitialized() + int(std::sqrt(n)); }).join(); return r; }
"""
    flags = [f"-L{tmp_path}", "-lown", f"-Wl,-rpath,{tmp_path}"]
    assert jitload.load_inline("u", cpp_sources=text, functions="f", extra_ldflags=flags).f(9) == 8
    with pytest.raises(CompileError, match=r"^the C\+\+ compiler could not compile 'u': \S*ld: cannot find -lown"):
        jitload.load_inline("u", cpp_sources=text, functions="f", extra_ldflags=flags[1:])


def has_driver_header() -> bool:
    """Return whether one of NVIDIA's wheels has the driver's header."""
    roots = getattr(importlib.util.find_spec("nvidia"), "submodule_search_locations", None) or ()
    return any(True for root in roots for _ in Path(root).glob("*/include/cuda.h"))


DRIVER_CALLS = """
#include <cuda.h>
int64_t count_devices() {
  int count = -1;
  TVM_FFI_CHECK(cuInit(0) == CUDA_SUCCESS, RuntimeError) << "no driver";
  TVM_FFI_CHECK(cuDeviceGetCount(&count) == CUDA_SUCCESS, RuntimeError) << "no count";
  return count;
}
int64_t result_of_init() { return cuInit(0); }
int64_t retain() {
  CUcontext context = nullptr;
  return cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS && cuDevicePrimaryCtxRelease(0) == CUDA_SUCCESS;
}
"""
CALLS = ["count_devices", "result_of_init", "retain"]
needs_headers = pytest.mark.skipif(not has_driver_header(), reason="cuda.h is not installed: nvidia-cuda-runtime")


def build_calls(**options: Any) -> str:
    return jitload.build_inline("calls", cuda_sources=DRIVER_CALLS, functions=CALLS, **options)


@needs_headers
@pytest.mark.parametrize("flags", [(), ("-lcuda",)])
def test_calls_reach_the_driver(flags, stub_driver):
    stub_driver.set_device_count(2)
    module = jitload.load_module(build_calls(extra_ldflags=flags))
    assert module.count_devices() == 2
    assert module.retain() == 1
    assert "cuDevicePrimaryCtxRelease" in {call.name for call in stub_driver.calls()}


def test_only_functions_of_the_driver_are_defined(tmp_path):
    (tmp_path / "cuda.h").write_text(
        "#define cuMemAlloc cuMemAlloc_v2\nCUresult CUDAAPI cuMemAlloc(void);\nCUresult CUDAAPI cuInit(unsigned);\n"
    )
    symbols = ["cuInit", "cuMemAlloc_v2", "cuFileRead", "cublasCreate_v2", "cudaMalloc", "cuInit_ptsz", "_ZN2cuIxE"]
    assert find_driver_calls(symbols, [tmp_path]) == ("cuInit", "cuInit_ptsz", "cuMemAlloc_v2")


@needs_headers
def test_without_a_driver_a_library_loads_and_calls_return_an_error():
    path = build_calls()
    assert not {name for name in undefined_symbols(Path(path)) if name.startswith("cu")}
    code = f"""
import ctypes, jitload
try:
    ctypes.CDLL("libcuda.so.1")
    print("there is a driver")
except OSError:
    print(jitload.load_module({path!r}).result_of_init())
"""
    assert run_python(code).stdout.strip() in ("100", "there is a driver")


HIDDEN_EXTRA = 'extern "C" __attribute__((visibility("hidden"))) int extra();\n'


def link_by_hand(built: str, tmp_path: Path, *objects: str) -> Path:
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
    text = HIDDEN_EXTRA + "int sum(int n) { return n + extra(); }\n" + EMBED + "int twice(int n) { return 2 * n; }"
    options = {"functions": ["twice", "sum"], "embed_cubin": {"first": CUBIN}, "output": tmp_path / "deep" / "m.o"}
    built = jitload.build_inline("m", cuda_sources=text, **options)
    library = link_by_hand(built, tmp_path, str(tmp_path / "extra.o"))
    module = jitload.load_module(library)
    assert (module.twice(21), module.sum(1)) == (42, 6)
    assert "run" in list(module)
    assert CUBIN in library.read_bytes()
    assert not [name for name in read_dynamic_symbols(library.read_bytes()).defined if "jitload" in name]


def cpp_object(name: str, text: str, tmp_path: Path, **more: Any) -> str:
    """Build an object of C++ by hand."""
    return jitload.build_inline(name, cpp_sources=text, output=tmp_path / f"{name}.o", **more)


def launching(name: str, call: str) -> str:
    """Return C++ that needs the launcher, and the driver by name: `call` sets `value`."""
    return f"""\
#include <cuda.h>
#include <tvm/ffi/extra/cuda/cubin_launcher.h>
TVM_FFI_EMBED_CUBIN({name});
int has_{name}() {{ int value = -1; {call}; return value; }}
void run_{name}() {{ static auto kernel = TVM_FFI_EMBED_CUBIN_GET_KERNEL({name}, "no_such"); }}
"""


@pytest.mark.usefixtures("stub_driver")
def test_a_library_holds_any_number_of_objects(tmp_path):
    calls, objects = {"one": "cuDriverGetVersion(&value)", "two": "cuInit(0), cuDeviceGetCount(&value)"}, []
    for name, call in calls.items():
        names = [f"run_{name}", f"has_{name}"]
        objects += [cpp_object(name, launching(name, call), tmp_path, functions=names, embed_cubin={name: CUBIN})]
    by_hand = jitload.load_module(link_by_hand(objects[0], tmp_path, objects[1]))
    for module in (by_hand, jitload.load("again", sources=objects)):
        assert sorted(module) == ["has_one", "has_two", "run_one", "run_two"]
        assert (module.has_one(), module.has_two()) == (13000, 2)


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
    library = link_by_hand(jitload.build_inline("m", cpp_sources=text, output=tmp_path / "m.o"), tmp_path)
    assert jitload.load_module(library).seven() == 7
    assert "hidden" not in read_dynamic_symbols(library.read_bytes()).defined
