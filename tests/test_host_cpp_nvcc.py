"""Sources that launch kernels with `<<<…>>>`: compiled by nvcc, or an error that says what to do without it."""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from builds import ADD, ARCH, EXPORT, run_python
from guides.kernel_library import build_scale, check_scale
from support.nvcc import needs_nvcc, real_nvcc

import jitload
from jitload import Launch
from jitload.building.ninja import Step
from jitload.errors import CompileError, LaunchSpecError, LoadError, ToolchainError
from jitload.host_cpp import dryrun
from jitload.host_cpp.nvcc import find_nvcc_cudart, is_of_nvcc, nvcc_failure
from jitload.request.arguments import Call, Sources
from jitload.request.request import make_request
from jitload.settings import read_settings
from jitload.toolchain import nvcc as nvcc_module
from jitload.toolchain.cuda import Nvcc, find_cuda_headers, find_cudart
from jitload.toolchain.host import tvm_ffi_include_dirs
from jitload.toolchain.nvcc import find_nvcc, run_nvcc

pytest_plugins = ["support.gpu_fixtures"]

BOTH = ADD + "void f() { add<<<1, 1>>>(0, 0, 0); }"
# No C++ header of tvm-ffi: nvcc takes two seconds for this one, and eight with them.
FILE = r"""
#include <stdint.h>
struct Any { int32_t type; uint32_t zero; int64_t value; };
__global__ void add(float* x) { x[threadIdx.x] += 1; }
void Add(float* x) { add<<<1, 32>>>(x); }
extern "C" __attribute__((visibility("default")))
int __tvm_ffi_get(void*, const Any*, int32_t, Any* result) {
  *result = {1, 0, VALUE};
  return 0;
}
"""


@pytest.fixture
def fresh_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("JITLOAD_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def no_nvcc(monkeypatch, tmp_path):
    """Hide every nvcc of this machine."""
    for name in ("CUDA_HOME", "CUDA_PATH", "JITLOAD_NVCC"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(nvcc_module, "DEFAULT_HOME", str(tmp_path / "default"))
    monkeypatch.setattr(nvcc_module, "package_dirs", lambda name: [])


def script_of_nvcc(path: Path, change: str) -> Path:
    """Write a script that runs the real nvcc and notes its arguments; `change` is a filter for what it prints."""
    log = path.with_suffix(".log")
    path.write_text(f'#!/bin/sh\necho "$@" >> "{log}"\n{{ {real_nvcc().path} "$@" 2>&1; }} {change}\n')
    path.chmod(0o755)
    log.touch()
    return log


def file_of(directory: Path, text: str = FILE, name: str = "f.cu") -> Path:
    (directory / name).write_text(text)
    return directory / name


def build_file(path: Path, **options) -> Path:
    return Path(jitload.build("m", sources=path, **{"arch": ARCH, "extra_cuda_cflags": ["-DVALUE=7"], **options}))


# ---- which sources need nvcc, and which nvcc it is ---------------------------------------------------------------

KINDS = [
    (BOTH, {}, "cuda_sources.cu"),
    ("TVM_FFI_DLL_EXPORT_TYPED_FUNC(f, f);" + BOTH, {}, "cuda_sources.cu"),
    (BOTH, {"kind": "host"}, "cuda_sources.cc"),
    (BOTH, {"kind": "device"}, None),
    (BOTH, {"cpp": (("m.cpp", "void f();"),)}, "cuda_sources.cu"),
    ("/* f<<<1, 1>>>() */" + ADD, {}, None),
    ('#include "kernels.cuh"\nvoid f() { Run(); }', {"kind": "mixed"}, "cuda_sources.cu"),
    ('#include "kernels.cuh"\nvoid f() { add<<<1, 1>>>(); }', {}, "cuda_sources.cu"),
    (ADD + "void f() { cudaLaunchKernelEx(&config, add, x, y, n); }", {}, "cuda_sources.cu"),
    ("#define K(name) __global__ void name()\nK(k) {}\nTVM_FFI_X(m);", {}, "cuda_sources.cu"),
    ("#include <thrust/sort.h>\nvoid f(tvm::ffi::TensorView x);", {}, "cuda_sources.cu"),
    ("#include <cub/block/block_reduce.cuh>" + ADD, {}, None),
    ("TVM_FFI_EMBED_CUBIN(m);", {}, "cuda_sources.cc"),
    ('#include <iostream>\nTVM_FFI_X(m); int f() { std::cout << "<<<" << 1; }', {}, "cuda_sources.cc"),
]


@pytest.mark.parametrize(("text", "options", "file"), KINDS)
def test_the_text_decides_whether_nvcc_is_needed(text, options, file):
    sources = Sources(cuda=(("m.cu", text),), host=options.get("cpp", ()))
    request = make_request(Call("m", sources, makes="library", arch=ARCH, kind=options.get("kind")))
    units = [unit for unit in request.host.units if unit.pieces == (("m.cu", text),)] if request.host else []
    assert [unit.file for unit in units] == ([file] if file else [])
    assert bool(request.pieces) == (file is None)
    assert request.archs == (() if file == "cuda_sources.cc" else (ARCH,))


def test_without_nvcc_the_error_names_the_extra_and_the_alternatives(no_nvcc, fresh_cache):
    with pytest.raises(ToolchainError) as caught:
        jitload.build_inline("m", cuda_sources=BOTH, arch=ARCH)
    assert str(caught.value) == (
        "module 'm' launches kernels from C++, which takes nvcc, and there is none. Install it with: "
        "pip install 'jitload[cu13,nvcc]'  (CUDA 12's wheels have no nvcc: install a toolkit of CUDA 12 and set "
        "CUDA_HOME to it, or JITLOAD_NVCC to its nvcc). There are two ways without nvcc: pass only the kernels in "
        "cuda_sources and declare the launch, functions={'f': Launch(grid=…, block=…)}; or compile them with "
        "compile_cubin() and launch them from C++ of your own, with embed_cubin=."
    )


def test_a_missing_nvcc_that_was_named_is_an_error(monkeypatch, fresh_cache, tmp_path):
    monkeypatch.setenv("JITLOAD_NVCC", str(tmp_path / "none"))
    with pytest.raises(ToolchainError, match=r"JITLOAD_NVCC=.*none: no nvcc there. Name its file, or the toolkit's"):
        jitload.build_inline("m", cuda_sources=BOTH, arch=ARCH)


def fake_toolkit(home: Path, release: str) -> Path:
    """Write an nvcc that is a script in front of its toolkit, as distributions have it."""
    (home / "bin").mkdir(parents=True)
    nvcc = home / "bin" / "nvcc"
    nvcc.write_text(f"#!/bin/sh\necho '#$ TOP={home}/bin/..'\necho 'release 13.0, V{release}'\n")
    nvcc.chmod(0o755)
    return nvcc


PARTS = {
    "nvidia_cuda_nvcc-13.5.37": "bin/nvcc",
    "nvidia_nvvm-13.5.37": "nvvm/bin/cicc",
    "nvidia_cuda_crt-13.5.99": "include/crt/host_config.h",
    "nvidia_cuda_runtime-13.5.1": "include/cuda_runtime.h",
}


@pytest.fixture
def wheels(monkeypatch, tmp_path):
    """NVIDIA's wheels with an nvcc, in place of those of this machine."""
    site = tmp_path / "site"
    for name, file in PARTS.items():
        path = site / "nvidia" / "cu13" / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("#!/bin/sh\necho 'release 13.5, V13.5.37'\n")
        path.chmod(0o755)
        (site / f"{name}.dist-info").mkdir()
    monkeypatch.setattr(nvcc_module, "package_dirs", lambda name: [site / name])
    nvcc_module._check_parts.cache_clear()
    return site


def test_the_order_is_settings_then_wheels_then_the_path_then_the_default_place(
    monkeypatch, fresh_cache, tmp_path, no_nvcc, wheels
):
    def found() -> Path:
        return find_nvcc(read_settings(), fresh_cache, name="m").path

    named, at_home, on_path, default = (
        fake_toolkit(tmp_path / name, "13.0.1") for name in ("named", "home", "path", "default")
    )
    monkeypatch.setenv("PATH", str(on_path.parent))
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))  # there is no nvcc in it
    assert found() == wheels / "nvidia" / "cu13" / "bin" / "nvcc"
    monkeypatch.setattr(nvcc_module, "package_dirs", lambda name: [])
    assert found() == on_path
    monkeypatch.setenv("PATH", "/nowhere")
    assert found() == default
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "home"))
    assert found() == at_home
    monkeypatch.setenv("JITLOAD_NVCC", str(tmp_path / "named"))
    assert found() == named
    monkeypatch.setenv("JITLOAD_NVCC", str(on_path))
    assert found() == on_path


def test_the_nvcc_of_wheels_is_described_by_all_its_wheels(fresh_cache, no_nvcc, wheels):
    home = wheels / "nvidia" / "cu13"
    (home / "bin" / "nvcc").chmod(0o644)  # some installers do
    nvcc = find_nvcc(read_settings(), fresh_cache, name="m")
    assert nvcc.version == (13, 5, 37)
    assert nvcc.identity == f"nvcc 13.5.37 {' '.join(sorted(PARTS))}"
    assert nvcc.include_dirs == (home / "include",)
    assert os.access(nvcc.path, os.X_OK)


def test_wheels_may_be_in_two_directories(monkeypatch, fresh_cache, no_nvcc, wheels, tmp_path):
    other = tmp_path / "user" / "nvidia"
    (other / "cu13").mkdir(parents=True)
    (wheels / "nvidia" / "cu13" / "include").rename(other / "cu13" / "include")
    monkeypatch.setattr(nvcc_module, "package_dirs", lambda name: [wheels / name, other])
    nvcc = find_nvcc(read_settings(), fresh_cache, name="m")
    assert nvcc.include_dirs == nvcc.added_include_dirs == (other / "cu13" / "include",)


@pytest.mark.parametrize("part", list(PARTS)[1:])
def test_an_incomplete_nvcc_of_wheels_names_the_wheel_that_is_missing(part, fresh_cache, no_nvcc, wheels):
    (wheels / "nvidia" / "cu13" / PARTS[part]).unlink()
    with pytest.raises(ToolchainError) as caught:
        find_nvcc(read_settings(), fresh_cache, name="m")
    wheel = part.partition("-")[0].replace("_", "-")
    assert str(caught.value).endswith(f"which needs {wheel} beside it: pip install 'jitload[cu13,nvcc]'")


def test_wheels_of_two_releases_of_cuda_are_not_mixed(fresh_cache, no_nvcc, wheels):
    (wheels / "nvidia_cuda_crt-13.5.99.dist-info").rename(wheels / "nvidia_cuda_crt-13.0.99.dist-info")
    with pytest.raises(ToolchainError) as caught:
        find_nvcc(read_settings(), fresh_cache, name="m")
    assert str(caught.value) == (
        "the wheels nvidia-cuda-nvcc 13.5.37 and nvidia-cuda-crt 13.0.99 are of different releases of CUDA, which do "
        "not work together: pip install 'nvidia-cuda-crt==13.5.*', or another nvidia-cuda-nvcc"
    )


def test_the_identity_of_an_nvcc_is_its_version_and_the_flags_in_its_variables(monkeypatch, fresh_cache, tmp_path):
    monkeypatch.setenv("JITLOAD_NVCC", str(fake_toolkit(tmp_path / "a", "13.0.1")))
    monkeypatch.delenv("NVCC_PREPEND_FLAGS", raising=False)
    monkeypatch.delenv("NVCC_APPEND_FLAGS", raising=False)
    assert find_nvcc(read_settings(), fresh_cache, name="m").identity == "nvcc 13.0.1"
    monkeypatch.setenv("NVCC_APPEND_FLAGS", "-G")
    assert find_nvcc(read_settings(), fresh_cache, name="m").identity == "nvcc 13.0.1 -G"
    shutil.rmtree(tmp_path / "a")
    fake_toolkit(tmp_path / "a", "13.0.25")  # an upgrade in place
    assert find_nvcc(read_settings(), fresh_cache, name="m").version == (13, 0, 25)


def test_the_runtime_library_is_that_of_a_wheel_of_the_same_major_version():
    toolchain = find_cuda_headers(read_settings())
    if toolchain is None or find_cudart(toolchain) is None:
        pytest.skip("needs the wheel nvidia-cuda-runtime")
    bare = Nvcc(major=toolchain.major, version=(toolchain.major, 0), path=Path("/nvcc"), include_dirs=(), identity="")
    assert find_nvcc_cudart(bare) == find_cudart(toolchain)
    assert find_nvcc_cudart(bare._replace(major=toolchain.major + 1)) is None


RELOCATABLE = """
__global__ void child(float* x) { x[threadIdx.x] += 1; }
__global__ void parent(float* x) { child<<<1, 32>>>(x); }
void run(tvm::ffi::TensorView x) { parent<<<1, 1>>>(static_cast<float*>(x.data_ptr())); }
"""


@needs_nvcc
def test_relocatable_device_code_is_linked():
    module = jitload.load_inline(
        "m", cuda_sources=RELOCATABLE, functions="run", extra_cuda_cflags=["-rdc=true -O3"], arch=ARCH
    )
    assert "run" in module


PROGRAM = "#include <cstdio>" + BOTH + 'int main(int count, char** arguments) { f(); puts("done"); }'


def test_the_kernels_of_a_program_are_loaded():
    assert list(jitload.load_inline("m", cuda_sources=PROGRAM, arch=ARCH)) == ["add"]
    kernels, host_code = PROGRAM.replace("#include <cstdio>", "").split("void f()")
    guarded = f"{kernels}\n#ifndef __CUDACC_RTC__\nvoid f(){host_code}\n#endif"
    assert list(jitload.load_inline("m", cuda_sources=guarded, arch=ARCH)) == ["add"]


def test_the_text_of_a_torch_extension_is_refused_with_the_next_step():
    text = "#include <torch/extension.h>\ntorch::Tensor f(torch::Tensor x) { return x + 1; }"
    for sources in ({"cpp_sources": text}, {"cpp_sources": "torch::Tensor f(torch::Tensor x);"}):
        with pytest.raises(CompileError, match=r"load it with torch\.utils\.cpp_extension\.load_inline") as caught:
            jitload.build_inline("m", **sources, functions="f")
        assert caught.value.diagnostics[0].line == 1


def test_functions_of_the_cuda_runtime_need_no_include():
    text = """
    void f(tvm::ffi::TensorView x) { cudaMemsetAsync(x.data_ptr(), 0, 4, nullptr); }
    """
    assert "f" in jitload.load_inline("m", cuda_sources=text, functions="f")


def test_a_launch_is_refused_where_the_text_launches_itself():
    with pytest.raises(LaunchSpecError, match=r"Launch\.grid: is for kernels, and 'f' is a function of the host"):
        jitload.build_inline("m", cuda_sources=BOTH, functions={"f": Launch(grid=1, block=1)}, arch=ARCH)


# ---- what nvcc compiles ------------------------------------------------------------------------------------------


@needs_nvcc
def test_one_source_with_everything_that_hand_written_cpp_supports(caplog):
    """Upstream's headers, functions with docs from another source, cubins, both kinds of flags, two GPUs."""
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
        cuda_sources=["#include <tvm/ffi/extra/cuda/cubin_launcher.h>\n", cuda],
        functions={"Eight": "One more."},
        embed_cubin={"first": jitload.compile_cubin(ADD, arch=ARCH)},
        extra_cflags=["-DONE=1"],
        extra_ldflags=["-lcudart", "-lcuda"],
        extra_cuda_cflags=["-DSEVEN=7", "-std=c++20", "-O3", "--use_fast_math"],
        arch=("sm_80", "sm_90a"),
    )
    assert caplog.messages == []
    module = jitload.load_module(library)
    assert (list(module), module.Eight()) == (["Eight", "launch"], 8)
    assert module.get_function_doc("Eight") == "One more."
    rules = Path(library).with_name("build.ninja").read_text()
    assert rules.count("/cicc ") == 2
    assert rules.count("/ptxas ") == 2
    assert "-std=c++20" in rules
    assert " -O3 " in rules
    assert b"libcudart.so.13" in Path(library).read_bytes()


@needs_nvcc
def test_a_hit_starts_no_nvcc_and_a_header_that_changed_builds_again(fresh_cache, tmp_path, monkeypatch):
    log = script_of_nvcc(tmp_path / "my nvcc", "| cat")
    monkeypatch.setenv("JITLOAD_NVCC", str(tmp_path / "my nvcc"))
    headers = tmp_path / "my $headers (x)"
    headers.mkdir()
    (headers / "value.h").write_text("#define VALUE 7\n")
    code = f"""if True:
    import jitload
    print(jitload.build("m", sources={str(file_of(tmp_path, '#include "value.h"' + FILE))!r}, arch="sm_90a",
                        extra_include_paths=[{str(headers)!r}]))"""
    starts, entries = [], []
    for value in (7, 7, 81, 81):
        (headers / "value.h").write_text(f"#define VALUE {value}\n")
        result = run_python(code)
        assert (jitload.load_module(result.stdout.strip()).get(), result.stderr) == (value, "")
        starts.append(log.read_text().count("--dryrun -ccbin"))
        entries.append(len(list(fresh_cache.glob("m-*/*/m.so"))))
    assert starts == [1, 1, 1, 1]  # the commands are kept
    assert log.read_text().count("-MD") == 0  # they were understood
    assert entries == [1, 1, 2, 2]
    library = next(fresh_cache.glob("m-*/0000-*/m.so"))
    recorded = json.loads(library.with_name("manifest.json").read_text())["dependencies"]
    read = [file["path"] for file in recorded if file["size"] >= 0]
    assert "@0/value.h" in read
    assert not [path for path in read if "cuda" in path]
    left = {path.suffix for path in library.parent.iterdir()}
    assert left == {".cu", ".d", ".json", ".ninja", ".o", ".so"}


# ---- the commands that nvcc prints -------------------------------------------------------------------------------


def printed_by_nvcc(directory: Path, *options: str) -> str:
    command = [str(real_nvcc().path), "--dryrun", *options, "-c", "jitload_unit.cu", "-o", "jitload_unit.cu.o"]
    return run_nvcc(command, directory=directory, variables={"TMPDIR": "."})


TARGETS = ("-gencode=arch=compute_80,code=sm_80", "-gencode=arch=compute_90a,code=sm_90a")


@needs_nvcc
def test_the_halves_of_a_compile_do_not_wait_for_each_other(tmp_path):
    template = dryrun._parse(printed_by_nvcc(tmp_path, *TARGETS), TARGETS)
    steps = {step.output: step for step in dryrun.template_steps(template, "f.cu")}

    def inputs(output: str) -> set[str]:
        """Return everything that an output is made from."""
        own = steps[output].inputs if output in steps else ()
        return {*own, *(name for file in own for name in inputs(file))}

    (host,) = (output for output in steps if output.endswith(".cudafe1.cpp"))
    cubins = [output for output in steps if output.endswith(".cubin")]
    assert len(cubins) == 2
    for part in (host, *cubins):
        assert not inputs(part) & {host, *cubins}
    assert {host, *cubins} < inputs("f.cu.o")
    words = [word for step in steps.values() for word in step.command]
    assert not [word for word in words if "tmpxft" in word or str(tmp_path) in word or "jitload_unit" in word]
    assert "--gen_module_id_file" not in words
    assert sum(word == "-MD" for word in words) == 3


@needs_nvcc
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda text: text + "nvcc warning : new\n", "the line 'nvcc warning : new'"),
        (lambda text: text.replace("cudafe++ ", "cudafe3 "), "the program 'cudafe3'"),
        (lambda text: text.replace("-3_jitload_unit", "-3_other"), "the temporary file "),
        (lambda text: text.replace(".compute_80.cpp1.ii", ".compute_90a.cpp1.ii"), "the temporary files "),
        (lambda text: re.sub("#[$] cudafe.*\n", "", text), "the programs "),
        (lambda text: text.replace('-o "jitload_unit.cu.o"', '-o "a.out"'), "the programs "),
        (lambda text: text.replace("A=1", "A=2"), "the option '-DA=1' comes out differently"),
        (lambda text: text.replace("cudafe++ ", "cudafe++ ' "), "No closing quotation"),
    ],
)
def test_what_is_not_understood_is_noticed(change, reason, tmp_path):
    options = ("-DA=1", *TARGETS)
    text = printed_by_nvcc(tmp_path, *options)
    assert dryrun._parse(text, options)
    assert change(text) != text
    with pytest.raises(dryrun._NotUnderstoodError, match=re.escape(reason)):
        dryrun._parse(change(text), options)


@needs_nvcc
def test_where_nothing_is_understood_nvcc_compiles_as_a_whole(fresh_cache, tmp_path, monkeypatch, caplog):
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
    assert "compiles as a whole, because the output of --dryrun is not understood: the program 'cudafe3'" in caplog.text
    assert log.read_text().count("-MD") == 1
    recorded = json.loads(library.with_name("manifest.json").read_text())["dependencies"]
    assert "@0/value.h" in [file["path"] for file in recorded if file["size"] >= 0]


@needs_nvcc
def test_a_header_that_only_device_code_includes_is_watched(fresh_cache, tmp_path):
    header = tmp_path / "device.h"
    header.write_text("#define STEP 1\n")
    text = '#ifdef __CUDA_ARCH__\n#define NAME "device.h"\n#include NAME\n#else\n#define STEP 0\n#endif\n'
    path = file_of(tmp_path, text + FILE.replace("+= 1", "+= STEP"))
    first = build_file(path)
    assert build_file(path) == first
    header.write_text("#define STEP 2\n")
    assert build_file(path) != first


@needs_nvcc
@pytest.mark.parametrize("bad", ["__global__ void k(float* x) { x = why; }", "void g() { why(); }", "#error why"])
def test_an_error_names_the_piece_and_its_own_line(bad):
    with pytest.raises(CompileError) as caught:
        jitload.build_inline("m", cuda_sources=[BOTH, "\n\n\n" + bad], arch=("sm_80", "sm_90"))
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
    assert str(error).endswith(
        "nvcc 13.0.88 takes no newer host compiler than g++ 15: name one that it takes, JITLOAD_CXX=g++-15."
    )
    other = CompileError(stage="host", name="m", log=log, command=("c++ -c m.cc",))
    assert not is_of_nvcc(other, steps)


@needs_nvcc
def test_warnings_are_not_told_twice(caplog, fresh_cache):
    jitload.build_inline("m", cuda_sources=BOTH + "\nvoid g() { int unused = 1; }", kind="mixed", arch=ARCH)
    assert caplog.text.count('"unused" was declared but never referenced') == 1


@needs_nvcc
def test_an_error_of_the_hosts_compiler_beside_it_stays_the_hosts():
    with pytest.raises(CompileError, match=r"the C\+\+ compiler could not compile 'm': m.cpp:2: ") as caught:
        jitload.build_inline("m", cpp_sources="\nint f() { return why; }", cuda_sources=BOTH, arch=ARCH)
    assert caught.value.stage == "host"
    shutil.rmtree(caught.value.work_dir)


@needs_nvcc
def test_the_error_for_an_unknown_architecture_lists_those_of_nvcc():
    with pytest.raises(ToolchainError, match=r"this nvcc \(\d+\.\d+\.\d+\) does not know sm_50; it knows .*sm_90,"):
        jitload.build_inline("m", cuda_sources=BOTH, arch="sm_50")


@needs_nvcc
def test_files_are_objects_of_their_own_and_a_compiler_may_be_several_words(fresh_cache, tmp_path, monkeypatch):
    monkeypatch.setenv("JITLOAD_CXX", "env FIRST=1 c++")
    monkeypatch.setenv("JITLOAD_ARCH", "90a")
    if Path("/dev/nvidiactl").exists():
        pytest.skip("arch='native' asks the GPU here")
    kernels = file_of(tmp_path, "__global__ void other(int* x) { *x = 1; }\nint Other() { return 5; }\n", "kernels.cu")
    main = file_of(
        tmp_path, "int Other();\n" + FILE.replace("VALUE", "Other() + C()").replace("#inc", "int C();\n#inc")
    )
    plain = file_of(tmp_path, "int C() { return 3; }\n", "c.cpp")
    module = jitload.load("m", sources=[kernels, main, plain])
    assert module.get() == 8
    (rules,) = fresh_cache.glob("m-*/*/build.ninja")
    assert rules.read_text().count("/ptxas -arch=sm_90a ") == 2
    assert " ./host_compiler " in rules.read_text()


@needs_nvcc
def test_the_cache_may_be_at_a_path_that_a_shell_would_read(tmp_path, monkeypatch):
    monkeypatch.setenv("JITLOAD_CACHE_DIR", str(tmp_path / "a $HOME 'b' c"))
    assert jitload.load_module(build_file(file_of(tmp_path))).get() == 7


@needs_nvcc
def test_the_guides_kernel_library_checks_what_it_gets(tmp_path):
    import torch

    module = jitload.load_module(build_scale(str(tmp_path / "scale.so"), arch=ARCH))
    assert list(module) == ["scale"]
    with pytest.raises(ValueError, match="x must be a CUDA tensor"):
        module.scale(torch.ones(3), 2.0, None)


@pytest.mark.gpu
@pytest.mark.usefixtures("gpu")
@needs_nvcc
def test_the_guides_kernel_library_computes_what_torch_computes(tmp_path):
    check_scale(jitload.load_module(build_scale(str(tmp_path / "scale.so"))))


def test_a_library_whose_runtime_library_is_elsewhere_gets_an_installed_one(fresh_cache, tmp_path, monkeypatch):
    """No library is built for it, because where a toolkit is installed the dynamic loader may find the toolkit's."""
    runtime, library = tmp_path / "libcudart.so.77", tmp_path / "m.so"
    for path in (runtime, library):
        options = ["-shared", "-fPIC", "-x", "c", "-I" + str(tvm_ffi_include_dirs()[0]), "-"]
        text = "" if path == runtime else EXPORT.replace("VALUE", "7")
        needed = [] if path == runtime else ["-x", "none", "-Wl,--no-as-needed", str(runtime)]
        command = ["c++", *options, *needed, f"-Wl,-soname,{path.name}", "-o", str(path)]
        subprocess.run(command, input=text, text=True, check=True)
    runtime.rename(tmp_path / "elsewhere.so")
    found = []
    monkeypatch.setattr("jitload.toolchain.cuda.find_installed_cudart", lambda major, settings: found.append(major))
    with pytest.raises(LoadError, match=r"runtime library of CUDA 77: pip install 'nvidia-cuda-runtime==77\.\*'"):
        jitload.load_module(library)
    monkeypatch.setattr("jitload.toolchain.cuda.find_installed_cudart", lambda *_: tmp_path / "elsewhere.so")
    assert jitload.load_module(library).get() == 7
    assert found == [77]
