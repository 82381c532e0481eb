"""Sources that launch kernels with `<<<…>>>`: compiled by nvcc, with kept commands, or an error with the next step."""

import json
import logging
import re
import shutil
from pathlib import Path

import pytest
import torch
from builds import ADD, ARCH, EXPORT, run_python
from guides.kernel_library import SOURCE, build_scale, check_scale
from support.nvcc import FILE, build_file, file_of, needs_nvcc, script_of_nvcc

import jitload
from jitload import Launch
from jitload.building.ninja import Step
from jitload.errors import CompileError, LaunchSpecError, ToolchainError
from jitload.host_cpp.nvcc import is_of_nvcc, nvcc_failure
from jitload.request.arguments import Call, Options
from jitload.request.request import make_request
from jitload.request.sources import Sources
from jitload.toolchain.cuda import Nvcc

BOTH = ADD + "void f() { add<<<1, 1>>>(0, 0, 0); }"


PLAIN = "int add(int a, int b) { return a + b; }"
CPP = {"cpp": (("m.cpp", "void f();"),)}
# A source, options of the call, and the file that the host's compiler or nvcc compiles; None for kernels.
KINDS = [
    (BOTH, {}, "cuda_sources.cu"),
    (BOTH, {"kind": "host"}, "cuda_sources.cc"),
    (BOTH, {"kind": "device"}, None),
    (BOTH, CPP, "cuda_sources.cu"),
    (ADD, CPP, None),
    ('#include "kernels.cuh"\nvoid f() { Run(); }', {"kind": "mixed"}, "cuda_sources.cu"),
    ('#include "kernels.cuh"\nvoid f() { add<<<1, 1>>>(); }', {}, "cuda_sources.cu"),
    ('#include "kernels.cuh"', {"functions": "add"}, None),
    (PLAIN, {"functions": "add"}, "cuda_sources.cc"),
    (PLAIN, {"functions": {"add": Launch(grid=1, block=1)}}, None),
    (ADD + "int one() { return 1; }", {"functions": {"one": Launch()}}, "cuda_sources.cu"),
    (ADD + "void f() { cudaLaunchKernelEx(&config, add, x, y, n); }", {}, "cuda_sources.cu"),
]


@pytest.mark.parametrize(("text", "options", "file"), KINDS)
def test_the_source_decides_who_compiles_it_unless_the_call_does(text, options, file):
    sources = Sources(cuda=(("m.cu", text),), host=options.get("cpp", ()))
    call = Call("m", sources, makes="library", arch=ARCH, kind=options.get("kind"), functions=options.get("functions"))
    request = make_request(call)
    units = [unit for unit in request.host.units if unit.pieces == (("m.cu", text),)] if request.host else []
    assert [unit.file for unit in units] == ([file] if file else [])
    assert bool(request.pieces) == (file is None)
    assert request.archs == (() if file == "cuda_sources.cc" else (ARCH,))


LAUNCH_HEADER = "#define LAUNCH(kernel, ...) kernel<<<1, 32>>>(__VA_ARGS__)\n"
WITH_MACRO = "__global__ void k(float* x) {}\nvoid run(float* x) { LAUNCH(k, x); }"


@pytest.mark.parametrize(
    ("text", "header", "functions", "is_mixed"),
    [
        ('#include "h.h"\n' + WITH_MACRO, LAUNCH_HEADER, "run", True),
        ('#include "h.h"\n', LAUNCH_HEADER + WITH_MACRO, ["run"], True),
        ('#include "h.h"\n', "__global__ void k(float* x) {}", "k", False),
        ('#include "h.h"\n__global__ void k(float* x) {}', LAUNCH_HEADER, "k", False),
        ("__global__ void k(float* x) {}\nint blocks(int n) { return n / 256; }", "", "blocks", True),
    ],
)
def test_the_names_in_functions_decide_as_well(text, header, functions, is_mixed, tmp_path):
    (tmp_path / "h.h").write_text(header)
    options = Options(include_dirs=(tmp_path,))
    call = Call("m", Sources(cuda=(("m.cu", text),)), makes="library", arch=ARCH, functions=functions, options=options)
    assert (make_request(call).host is not None) == is_mixed


@pytest.mark.parametrize(
    "launch",
    ["// k<<<\nvoid f() { k<<<1, 1>>>(); }", "void f() { cudaLaunchKernelEx(&c, k); }", "#include <thrust/sort.h>"],
)
def test_the_cpu_has_no_launches_from_host_code(launch):
    with pytest.raises(CompileError, match=r'm.cu:[23]: (?s:.*)leave "cpu" out of arch=\. To load kernels'):
        jitload.load_inline("m", cuda_sources="__global__ void k() {}\n" + launch, arch="cpu")


def test_what_the_headers_for_torch_lack_is_refused_with_the_next_step():
    text = "torch::Tensor f(torch::Tensor x) { return torch::nn::functional::relu(x); }"
    with pytest.raises(CompileError, match=r"jitload\.cpp_extension\.load_inline") as caught:
        jitload.build_inline("m", cpp_sources=text, functions="f")
    assert caught.value.diagnostics[0].line == 1


def test_functions_of_the_cuda_runtime_need_no_include():
    text = "void f(tvm::ffi::TensorView x) { cudaMemsetAsync(x.data_ptr(), 0, 4, nullptr); }"
    assert "f" in jitload.load_inline("m", cuda_sources=text, functions="f")


@needs_nvcc
def test_one_source_with_everything_that_hand_written_cpp_supports(caplog):
    """The kernel library of the guides, functions with docs from another source, cubins, both kinds of flags."""
    cuda = r"""
    template <class T> __global__ void twice(T* x) { x[threadIdx.x] *= 2; }
    TVM_FFI_EMBED_CUBIN(first);
    int Launch(tvm::ffi::TensorView x, int64_t stream) {
      twice<<<1, x.numel(), 0, reinterpret_cast<cudaStream_t>(stream)>>>(static_cast<float*>(x.data_ptr()));
      return cudaGetLastError();
    }
    int Seven() { return SEVEN; }
    TVM_FFI_DLL_EXPORT_TYPED_FUNC(launch, Launch);
    """
    caplog.set_level(logging.WARNING)
    library = jitload.build_inline(
        "all",
        cpp_sources="int Seven(); int Eight() { return Seven() + ONE; }",
        cuda_sources=["#include <tvm/ffi/extra/cuda/cubin_launcher.h>\n", cuda, SOURCE],
        functions={"Eight": "One more."},
        embed_cubin={"first": jitload.compile_cubin(ADD, arch=ARCH)},
        extra_cflags=["-DONE=1"],
        extra_ldflags=["-lcudart", "-lcuda"],
        extra_cuda_cflags=["-DSEVEN=7", "-std=c++20", "-O1", "--use_fast_math"],
        arch=ARCH,
    )
    assert caplog.messages == []
    module = jitload.load_module(library)
    assert (list(module), module.Eight()) == (["Eight", "launch", "scale"], 8)
    assert module.get_function_doc("Eight") == "One more."
    with pytest.raises(ValueError, match="x must be a CUDA tensor"):
        module.scale(torch.ones(3), 2.0, None)
    rules = Path(library).with_name("build.ninja").read_text()
    assert "-std=c++20" in rules
    assert " -O1 " in rules
    assert b"libcudart.so.13" in Path(library).read_bytes()


@needs_nvcc
@pytest.mark.parametrize("bad", ["__global__ void k(float* x) { x = why; }", "void g() { why(); }"])
def test_an_error_names_the_piece_and_its_own_line(bad):
    with pytest.raises(CompileError) as caught:
        jitload.build_inline("m", cuda_sources=[BOTH, "\n\n\n" + bad], functions="f", arch=("sm_80", "sm_90"))
    (diagnostic,) = [message for message in caught.value.diagnostics if "error" in message.severity]
    assert (caught.value.stage, diagnostic.file, diagnostic.line) == ("nvcc", "cuda_sources[1]", 4)
    assert str(caught.value).startswith("nvcc could not compile 'm': cuda_sources[1]:4: ")
    assert len(re.findall(r"error:? .*why|error why", caught.value.log)) == 1  # though three compilers say so
    assert "FAILED" not in caught.value.log
    assert "\nCommand: " in str(caught.value)
    shutil.rmtree(caught.value.work_dir)


def test_the_error_for_a_compiler_that_nvcc_rejects_says_what_to_do(tmp_path):
    nvcc = Nvcc(major=13, version=(13, 0, 88), path=tmp_path / "nvcc", include_dirs=(), identity="")
    log = "crt/host_config.h:143:2: error: #error -- unsupported GNU version! gcc versions later than 15 are not known"
    command = "/usr/bin/c++ -E m.cu"
    failed = CompileError(stage="host", name="m", log=log, command=(command,), work_dir=tmp_path)
    steps = [Step(output="m.cu.o", command=tuple(command.split()), inputs=())]
    assert is_of_nvcc(failed, steps)
    error = nvcc_failure(failed, nvcc)
    assert (error.stage, error.log, error.work_dir, error.diagnostics[0].line) == ("nvcc", log, tmp_path, 143)
    assert "nvcc 13.0.88 does not support newer host compilers than g++ 15. Set JITLOAD_CXX=g++-15" in error.message()
    compiler_error = CompileError(stage="host", name="m", log=log, command=("c++ -c m.cc",))
    assert not is_of_nvcc(compiler_error, steps)


@needs_nvcc
def test_an_error_of_the_hosts_compiler_beside_it_stays_the_hosts():
    with pytest.raises(CompileError, match=r"the C\+\+ compiler could not compile 'm': m.cpp:2: ") as caught:
        jitload.build_inline("m", cpp_sources="\nint g() { return why; }", cuda_sources=BOTH, functions="f", arch=ARCH)
    assert caught.value.stage == "host"
    shutil.rmtree(caught.value.work_dir)


@needs_nvcc
def test_the_error_for_an_unknown_architecture_lists_those_of_nvcc():
    with pytest.raises(ToolchainError, match=r"this nvcc \(\d+\.\d+\.\d+\) does not know sm_50; it knows .*sm_90,"):
        jitload.build_inline("m", cuda_sources=BOTH, functions=["f"], arch="sm_50")


@pytest.mark.gpu
@pytest.mark.usefixtures("gpu")
@needs_nvcc
def test_the_guides_kernel_library_computes_what_torch_computes(tmp_path):
    check_scale(jitload.load_module(build_scale(str(tmp_path / "scale.so"))))


@needs_nvcc
def test_functions_are_found_in_the_files_that_define_them(tmp_path, monkeypatch):
    """Each file is what it is by itself: only what launches kernels is compiled by nvcc. A shell would expand paths."""
    cache = tmp_path / "a $HOME 'b' c"
    monkeypatch.setenv("JITLOAD_CACHE_DIR", str(cache))
    monkeypatch.setenv("JITLOAD_CXX", "env FIRST=1 c++")
    texts = {
        "launch.cu": BOTH + '\nint Four();\nextern "C" {\nint Two(int n) { f(); return Four() + n; }\n}',
        "plain.cu": 'extern "C" {' + EXPORT.replace("VALUE", "1") + "}",
        "more.cpp": "namespace inner { int Two() { return 0; } }\nint Four() { return 4; }",
    }
    files = [file_of(tmp_path, text, name) for name, text in texts.items()]
    module = jitload.load("m", sources=files, functions={"Two": "Two.", "Four": None}, arch=ARCH)
    assert sorted(module) == ["Four", "Two", "get"]
    assert (module.get(), module.Four()) == (1, 4)
    assert module.Two.__signature__.parameters.keys() == {"n"}  # not that of the namespace
    assert module.get_function_doc("Two") == "Two."
    (directory,) = cache.glob("m-*/*")
    assert sorted(path.name for path in directory.glob("source*.c?")) == ["source0.cc", "source1.cu", "source2.cc"]
    with pytest.raises(LaunchSpecError, match=r"functions: no file defines a host function 'inner'"):
        jitload.build("m", sources=files, functions=["inner"], arch=ARCH)


@needs_nvcc
def test_a_hit_starts_no_nvcc_and_a_header_that_changed_builds_again(cache, tmp_path, monkeypatch):
    log = script_of_nvcc(tmp_path / "my nvcc", "| cat")
    monkeypatch.setenv("JITLOAD_NVCC", str(tmp_path / "my nvcc"))
    headers = tmp_path / "my headers"
    headers.mkdir()
    device = '#ifdef __CUDA_ARCH__\n#define NAME "device.h"\n#include NAME\n#else\n#define STEP 0\n#endif\n'
    text = '#include "value.h"\n' + device + FILE.replace("+= 1", "+= STEP")
    code = f"""if True:
    import jitload
    print(jitload.build("m", sources={str(file_of(tmp_path, text))!r}, arch="sm_90a",
                        extra_include_paths=[{str(headers)!r}]))"""
    starts, entries = [], []
    for value, step in ((7, 1), (7, 1), (7, 2)):  # only device code includes the step
        (headers / "value.h").write_text(f"#define VALUE {value}\n")
        (headers / "device.h").write_text(f"#define STEP {step}\n")
        result = run_python(code)
        assert (jitload.load_module(result.stdout.strip()).get(), result.stderr) == (value, "")
        starts.append(log.read_text().count("--dryrun -ccbin"))
        entries.append(len(list(cache.glob("m-*/*/m.so"))))
    assert starts == [1, 1, 1]  # the commands are kept
    assert log.read_text().count("-MD") == 0  # they were understood
    assert entries == [1, 1, 2]
    library = next(cache.glob("m-*/0000-*/m.so"))
    recorded = json.loads(library.with_name("manifest.json").read_text())["dependencies"]
    read = [file["path"] for file in recorded if file["size"] >= 0]
    assert "@0/value.h" in read
    assert not [path for path in read if "cuda" in path]
    left = {path.suffix for path in library.parent.iterdir()}
    assert left == {".cu", ".d", ".json", ".ninja", ".o", ".so"}


@needs_nvcc
def test_where_nothing_is_understood_nvcc_compiles_as_a_whole(cache, tmp_path, monkeypatch, caplog):
    log = script_of_nvcc(tmp_path / "nvcc", "| sed 's/cudafe++/cudafe3/'")
    monkeypatch.setenv("JITLOAD_NVCC", str(tmp_path / "nvcc"))
    caplog.set_level(logging.DEBUG, logger="jitload.host_cpp.dryrun")
    header = tmp_path / "a $1" / "value.h"
    header.parent.mkdir()
    header.write_text("#define VALUE 9\n")
    library = build_file(
        file_of(tmp_path, '#include "value.h"' + FILE), extra_include_paths=[header.parent], extra_cuda_cflags=[]
    )
    assert jitload.load_module(library).get() == 9
    assert "jitload does not understand this in the output of --dryrun: the program 'cudafe3'" in caplog.text
    assert log.read_text().count("-MD") == 1
    recorded = json.loads(library.with_name("manifest.json").read_text())["dependencies"]
    assert "@0/value.h" in [file["path"] for file in recorded if file["size"] >= 0]
