"""PTX and LTO-IR to machine code, through nvJitLink and through the driver's linker."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from builds import ADD, python_env
from support.fatbins import fatbin_of
from support.ptx import SOURCE, compile_to

import jitload
from jitload.errors import CompileError, LoadError, ToolchainError
from jitload.kernels.ptx import format_of
from jitload.settings import read_settings
from jitload.toolchain import cuda
from jitload.toolchain.cuda import find_nvjitlink

pytest_plugins = ["support.ptx_fixtures"]


@pytest.fixture
def no_nvjitlink(monkeypatch):
    monkeypatch.setattr("jitload.toolchain.cuda._nvjitlink_files", lambda *_: ())


# ---- what is recognised ------------------------------------------------------------------------------------------

FORMATS = [
    (".version 8.0\n.target sm_80", "ptx"),
    ("//\n// Made by hand\n/* .* / **/\n\n  .version 9.2\n", "ptx"),
    (b"\xef\xbb\xbf.version 7.8", "ptx"),
    (b"\xed\x43\x4e\x7f\1\2", "lto-ir"),
    ("// .version 8.0\n__global__ void k() {}", None),
    ("/* */ " * 64 + "int version = s.version 8.0;", None),
    (b"\x50\xed\x55\xba\1\0", "fatbin"),
    (b"\x7fELF", None),
    (b"", None),
    (["a.version 8.0"], None),
]


@pytest.mark.parametrize(("source", "format_"), FORMATS, ids=range(len(FORMATS)))
def test_a_format_is_known_by_how_it_begins(source, format_):
    assert format_of(source) == format_


def test_source_text_that_speaks_of_a_version_stays_source():
    assert (
        jitload.compile_cubin("// .version 8.0\n" + ADD, arch="sm_80").kernels[0].parameters[0].type == "const float*"
    )


# ---- what is compiled --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", [str, bytes, bytearray, memoryview, "with a NUL"])
def test_ptx_becomes_a_cubin_with_what_is_known(ptx, form):
    text = ptx.encode() + b"\0" if form == "with a NUL" else ptx if form is str else form(ptx.encode())
    cubin = jitload.compile_cubin(text, name="scale.ptx", arch="sm_90a")
    assert cubin.arch == "sm_90a"
    assert [str(kernel) for kernel in cubin.kernels] == [
        "scale(b64 arg0, b32 arg1, b32 arg2)",
        "fill<int>(int* arg0, int arg1)",
        "fill<double>(double* arg0, double arg1)",
    ]
    scale = next(kernel for kernel in cubin.kernels if kernel.name == "scale")
    assert [(p.kind, p.size, p.offset) for p in scale.parameters] == [("bits", 8, 0), ("bits", 4, 8), ("bits", 4, 12)]
    assert scale.registers > 0
    assert [(variable.name, variable.size) for variable in cubin.variables] == [("table", 16)]


@pytest.mark.usefixtures("ptx")
def test_lto_ir_becomes_a_cubin():
    cubin = jitload.compile_cubin(compile_to("LTOIR", "--gpu-architecture=sm_90", "-dlto"), arch="sm_90")
    assert {kernel.name for kernel in cubin.kernels} == {"scale", "fill<double>", "fill<int>"}


def test_the_linkers_options_may_be_written_as_nvccs(ptx):
    flags = ["-Xptxas", "-v", "--maxrregcount=32", "-lineinfo", "-O3"]
    log = jitload.compile_cubin(ptx, arch="sm_80", extra_cuda_cflags=flags).log
    assert "Compiling entry function 'scale' for 'sm_80'" in log


# ---- what is refused ---------------------------------------------------------------------------------------------


def refused(error, source, arch="sm_90", **options) -> str:
    with pytest.raises(error) as caught:
        jitload.compile_cubin(source, name="k.ptx", arch=arch, **options)
    assert type(caught.value) is error
    return caught.value.message()


def test_bad_ptx_is_told_in_the_linkers_words_with_its_line(ptx):
    bad = ptx.replace("st.global", "st.glob", 1)
    with pytest.raises(CompileError) as caught:
        jitload.compile_cubin(bad, name="k.ptx", arch="sm_90")
    line = bad[: bad.index("st.glob.")].count("\n") + 1
    error = caught.value
    assert (error.stage, error.diagnostics[0].line, error.diagnostics[0].file) == ("ptx", line, "k.ptx")
    assert str(error).startswith(f"the linker could not compile 'k.ptx' for sm_90: k.ptx:{line}: ")
    assert f"ptxas application ptx input, line {line}; error" in error.log


def test_ptx_that_is_newer_than_the_linker(ptx):
    newer = ptx.replace(ptx[ptx.index(".version") :].split("\n")[0], ".version 99.9")
    said = refused(CompileError, newer)
    assert "Unsupported .version 99.9" in said
    assert said.endswith("or generate the PTX with an older compiler.")
    assert "This PTX is newer than the linker. Install a newer linker (pip install -U nvidia-nvjitlink)" in said


def test_an_architecture_below_the_target(ptx):
    assert refused(CompileError, ptx, arch="sm_75").endswith(
        "This PTX is for sm_80 and newer, and not for sm_75. Compile it for arch='sm_80', or generate it for another "
        ".target."
    )


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100", "sm_100a"])
def test_ptx_for_a_single_architecture(ptx, arch):
    said = refused(CompileError, ptx.replace(".target sm_80", ".target sm_90a"), arch=arch)
    assert f"This PTX is for sm_90a alone, and not for {arch}. Compile it for arch='sm_90a', or" in said


@pytest.mark.parametrize("arch", ["sm_90", "sm_120"])
def test_ptx_for_a_family_of_architectures(ptx, arch):
    said = refused(CompileError, ptx.replace(".target sm_80", ".target sm_100f"), arch=arch)
    assert f"This PTX is for sm_100f and newer architectures of its family, and not for {arch}. Compile" in said


def test_an_architecture_that_the_linker_does_not_know(ptx):
    assert refused(ToolchainError, ptx, arch="sm_50").startswith("nvJitLink does not know sm_50 (for 'k.ptx'):\n")
    assert refused(ToolchainError, ptx, arch="sm_90f").startswith("nvJitLink does not know sm_90f (for 'k.ptx'):\n")


def test_options_that_only_source_takes(ptx):
    said = refused(CompileError, ptx, extra_cuda_cflags=["--use_fast_math"])
    assert "unrecognized option: --use_fast_math\n" in said
    assert said.endswith("takes only the linker's options, such as '-maxrregcount=32', '-Xptxas=-v' and '-lineinfo'.")


def test_other_sources_and_several_architectures_are_refused(ptx, cubin):
    words = "'k.ptx' is not PTX, LTO-IR or a fatbin: its bytes begin with b'\\x7fELF\\x02\\x01\\x01"
    assert refused(jitload.JitLoadError, cubin.data).startswith(words)
    assert (
        refused(jitload.JitLoadError, ptx.encode()[:200] + b"\0" + b"x")
        == "'k.ptx' is PTX that contains a NUL character, at which linkers stop reading: generate it again"
    )
    assert "it takes one architecture, not sm_80, sm_90" in refused(ToolchainError, ptx, arch="sm_80,sm_90")
    with pytest.raises(jitload.JitLoadError, match=r"^m.cu is PTX, not CUDA source: compile it with compile_cubin"):
        jitload.build_inline("m", cuda_sources=ptx, arch="sm_80")


def test_a_fatbin_gives_the_machine_code_for_an_architecture(no_nvjitlink, tmp_path):
    """It takes no linker, and what it gives is typed as a cubin without source is."""
    older, newer = (jitload.compile_cubin(SOURCE, arch=arch).data for arch in ("sm_80", "sm_86"))
    accelerated = jitload.compile_cubin(SOURCE, arch="sm_90a").data
    fatbin = fatbin_of((2, 80, older), (2, 86, newer), (2, 90, accelerated))
    for arch, code in (("sm_80", older), ("sm_86", newer), ("sm_89", newer), ("sm_90a", accelerated)):
        taken = jitload.compile_cubin(fatbin, arch=arch)
        assert taken.data.startswith(code)
        assert "scale" in [kernel.name for kernel in taken.kernels]
    launch = jitload.Launch(signature="void scale(float* x, float factor, int n)", grid=1, block=32)
    taken = jitload.compile_cubin(fatbin, arch="sm_80")
    assert Path(jitload.build_inline("m", embed_cubin={"k": taken}, functions={"scale": launch})).exists()


def test_a_fatbin_with_ptx_alone_is_compiled(ptx):
    taken = jitload.compile_cubin(fatbin_of((1, 80, ptx.encode() + b"\0")), arch="sm_90a")
    assert (taken.arch, "scale" in [kernel.name for kernel in taken.kernels]) == ("sm_90a", True)


def test_what_nvcc_compresses_is_unpacked_by_the_linker(ptx, tmp_path):
    if not shutil.which("nvcc"):
        pytest.skip("nvcc is not installed")
    (tmp_path / "k.cu").write_text(SOURCE)
    command = ["nvcc", "-fatbin", "-arch=sm_80", "--compress-mode=size", tmp_path / "k.cu", "-o", tmp_path / "k.fatbin"]
    subprocess.run(command, check=True)
    taken = jitload.compile_cubin((tmp_path / "k.fatbin").read_bytes(), arch="sm_90a")
    assert (taken.arch, "scale" in [kernel.name for kernel in taken.kernels]) == ("sm_90a", True)


def test_a_fatbin_with_nothing_for_an_architecture_says_what_it_has(ptx, cubin):
    words = (
        "the fatbin 'k.ptx' has neither PTX nor uncompressed machine code for sm_80; it has code for: sm_90a. Name one"
    )
    assert refused(jitload.JitLoadError, fatbin_of((2, 90, cubin.data)), arch="sm_80").startswith(words)
    packed = fatbin_of((2, 80, b"compressed"))
    assert refused(jitload.JitLoadError, packed, arch="sm_80").endswith(
        "; it has code for: sm_80. Name one of these architectures, or compile the fatbin with --compress-mode=none."
    )
    damaged = refused(LoadError, fatbin_of((2, 90, cubin.data))[:-8], arch="sm_80")
    assert damaged.startswith("'k.ptx': this fatbin is damaged or cut off (")


def test_without_a_linker_the_error_names_the_command(ptx, no_nvjitlink, monkeypatch):
    monkeypatch.setattr("jitload.cuda.linkers.driver_version", lambda: None)
    assert refused(ToolchainError, ptx) == (
        "compiling PTX ('k.ptx') needs nvJitLink, which was not found, and there is no driver to link it instead. "
        "Install nvJitLink with: pip install nvidia-nvjitlink  (or pip install nvidia-nvjitlink-cu12 for a driver "
        "older than CUDA 13)"
    )
    assert "and the driver's linker does not take LTO-IR." in refused(ToolchainError, b"\xed\x43\x4e\x7f....")
    monkeypatch.setenv("JITLOAD_NVRTC", "12")
    assert refused(ToolchainError, ptx).endswith(" Install nvJitLink with: pip install nvidia-nvjitlink-cu12")


def test_nvjitlink_is_found_where_nvrtc_is(monkeypatch, tmp_path):
    monkeypatch.setattr(cuda, "_nvjitlink_files", cuda._nvjitlink_files.__wrapped__)  # without its cache
    monkeypatch.setattr(cuda, "package_dirs", lambda _: [])
    monkeypatch.setattr(cuda, "DEFAULT_HOME", str(tmp_path / "default"))
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.delenv("CUDA_PATH", raising=False)
    assert find_nvjitlink(read_settings()) is None
    for home, variable in (("default", ""), ("home", "CUDA_HOME")):
        library = tmp_path / home / "lib64" / "libnvJitLink.so.12"
        library.parent.mkdir(parents=True)
        library.touch()
        if variable:
            monkeypatch.setenv(variable, str(tmp_path / home))
        assert find_nvjitlink(read_settings()) == library


def test_of_several_nvjitlinks_the_newest_that_the_driver_runs(monkeypatch):
    libraries = [Path("/a/libnvJitLink.so.13"), Path("/b/libnvJitLink.so.12"), Path("/c/libnvJitLink.so.12")]
    monkeypatch.setattr("jitload.toolchain.cuda._nvjitlink_files", lambda *_: tuple(libraries))
    for driver, index in ((None, 0), ((13, 0), 0), ((12, 8), 1), ((11, 8), None)):
        monkeypatch.setattr("jitload.toolchain.cuda.driver_version", lambda driver=driver: driver)
        assert find_nvjitlink(read_settings()) == (None if index is None else libraries[index])
    monkeypatch.setenv("JITLOAD_NVRTC", "12")
    assert find_nvjitlink(read_settings()) == libraries[1]


# ---- the driver's linker -----------------------------------------------------------------------------------------

DRIVER = r"""
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
extern "C" {
static int held = 0, destroyed = 0, target = 0;
static char* log_buffer; static size_t log_size; static std::string cubin;
static int Init(unsigned) { return 0; }
static int DriverVersion(int* version) { *version = 12090; return 0; }
static int CtxGetCurrent(void** context) { *context = nullptr; return 0; }
static int PrimaryCtxRetain(void** context, int) { held++; *context = &held; return 0; }
static int PrimaryCtxRelease(int) { held--; return 0; }
static int CtxSetCurrent(void*) { return 0; }
static int LinkCreate(unsigned count, int* names, void** values, void** state) {
  for (unsigned i = 0; i < count; i++) {
    if (names[i] == 5) log_buffer = (char*)values[i];
    if (names[i] == 6) log_size = (size_t)values[i];
    if (names[i] == 9) target = (int)(size_t)values[i];
  }
  *state = &target;
  return 0;
}
static int LinkAddData(void*, int type, void* data, size_t size, const char*, unsigned, int*, void**) {
  if (type != 1 || ((char*)data)[size - 1] != 0) return 1;
  if (!std::strstr((char*)data, "st.glob.")) return 0;
  std::snprintf(log_buffer, log_size, "ptxas application ptx input, line 7; error   : Unknown modifier '.glob'");
  return 218;
}
static int LinkComplete(void*, const void** image, size_t* size) {
  std::ifstream file("image.cubin", std::ios::binary);
  cubin.assign(std::istreambuf_iterator<char>(file), {});
  *image = cubin.data();
  *size = cubin.size();
  return 0;
}
static int LinkDestroy(void*) { destroyed++; return 0; }

int driver_state(int which) { return which == 0 ? held : which == 1 ? destroyed : target; }
int cuInit(unsigned flags) { return Init(flags); }
int cuDriverGetVersion(int* version) { return DriverVersion(version); }
int cuGetProcAddress_v2(const char* name, void** function, int, unsigned long, void*) {
  struct Entry { const char* name; void* function; } entries[] = {
    {"cuInit", (void*)Init}, {"cuDriverGetVersion", (void*)DriverVersion}, {"cuCtxGetCurrent", (void*)CtxGetCurrent},
    {"cuDevicePrimaryCtxRetain", (void*)PrimaryCtxRetain}, {"cuDevicePrimaryCtxRelease", (void*)PrimaryCtxRelease},
    {"cuCtxSetCurrent", (void*)CtxSetCurrent}, {"cuLinkCreate", (void*)LinkCreate},
    {"cuLinkAddData", (void*)LinkAddData}, {"cuLinkComplete", (void*)LinkComplete},
    {"cuLinkDestroy", (void*)LinkDestroy}};
  *function = nullptr;
  for (auto& entry : entries) if (!std::strcmp(entry.name, name)) *function = entry.function;
  return *function ? 0 : 500;
}
}
"""
PROGRAM = """
import ctypes, pathlib, sys
import jitload
from jitload.toolchain import cuda

cuda._nvjitlink_files = lambda *_: ()
arch, flags, ptx = sys.argv[1], sys.argv[2:], pathlib.Path("k.ptx").read_text()
try:
    data = jitload.compile_cubin(ptx, name="k.ptx", arch=arch, extra_cuda_cflags=flags).data
    state = ctypes.CDLL("libcuda.so.1").driver_state
    print([state(which) for which in range(3)], data == pathlib.Path("image.cubin").read_bytes())
except jitload.JitLoadError as error:
    print(type(error).__name__, error)
"""


@pytest.fixture(scope="module")
def driver_dir(tmp_path_factory):
    """A driver that links, in a directory of its own: a process can load one driver."""
    directory = tmp_path_factory.mktemp("driver")
    (directory / "driver.cc").write_text(DRIVER)
    command = ["c++", "-shared", "-fPIC", "-w", "-Wl,-soname,libcuda.so.1", "driver.cc", "-o", "libcuda.so.1"]
    subprocess.run(command, cwd=directory, check=True)
    return directory


def link_with(driver_dir, ptx, image, *arguments) -> str:
    (driver_dir / "k.ptx").write_text(ptx)
    (driver_dir / "image.cubin").write_bytes(image)
    env = python_env() | {"LD_LIBRARY_PATH": str(driver_dir)}
    command = [sys.executable, "-c", PROGRAM, *arguments]
    done = subprocess.run(command, cwd=driver_dir, env=env, capture_output=True, text=True, check=True)
    return done.stdout


@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="this machine has a driver")
@pytest.mark.parametrize(("arch", "target"), [("sm_80", 80), ("sm_90a", 0x10000 + 90), ("sm_100f", 0x20000 + 100)])
def test_the_drivers_linker_takes_the_place_of_nvjitlink(driver_dir, ptx, cubin, arch, target):
    # The context was given back, the linker destroyed.
    assert link_with(driver_dir, ptx, cubin.data, arch) == f"[0, 1, {target}] True\n"
    answer = link_with(driver_dir, ptx.replace("st.global", "st.glob"), cubin.data, arch)
    words = f"CompileError the linker could not compile 'k.ptx' for {arch}: k.ptx:7: Unknown modifier '.glob'"
    assert answer.startswith(words)


@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="this machine has a driver")
def test_what_the_drivers_linker_cannot_do(driver_dir, ptx):
    assert "the driver's linker does not take options" in link_with(driver_dir, ptx, b"", "sm_80", "-lineinfo")
    unknown = link_with(driver_dir, ptx, b"", "sm_199")
    assert unknown.startswith("ToolchainError the driver's linker does not know sm_199 (for 'k.ptx'):\n")
