"""`python -m jitload.utils.embed_cubin`: object files that linkers, C, and both launchers understand; fatbins."""

import ctypes
import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support.arrays import CudaArray, tensor_of
from support.fatbins import fatbin_of, symbols_in
from support.program import CUBIN
from support.wrappers import SOURCES, find_cuda_headers, include_flags, load, run_compiler

from jitload.cuda.fatbin import FatbinEntry, make_fatbin, read_fatbin, select_image
from jitload.errors import JitLoadError, LoadError
from jitload.utils.embed_cubin import embed_cubin, main

IMAGE = CUBIN.read_bytes()
READER = """\
extern const char __tvm_ffi__cubin_{name}[], __tvm_ffi__cubin_{name}_end[];
const char* begin_{name}(void) {{ return __tvm_ffi__cubin_{name}; }}
const char* end_{name}(void) {{ return __tvm_ffi__cubin_{name}_end; }}
"""


def compile_c(directory: Path, *names: str, flags: tuple[str, ...] = ()) -> Path:
    """Compile C that refers to cubins to `reader.o`."""
    source = directory / "reader.c"
    source.write_text("".join(READER.format(name=name) for name in names) or "int nothing;\n")
    run_compiler(["-x", "c", "-fPIC", "-c", *flags, source.name, "-o", "reader.o"], directory)
    return directory / "reader.o"


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Return an object of C that refers to the cubin `k`."""
    return compile_c(tmp_path_factory.mktemp("reader"), "k").read_bytes()


@pytest.fixture
def source(reader: bytes, tmp_path: Path) -> Path:
    """Return a file of one's own with this object."""
    path = tmp_path / "reader.o"
    path.write_bytes(reader)
    return path


def link(directory: Path, *objects: Path) -> ctypes.CDLL:
    command = ["-shared", "-Wl,-z,defs", "-Wl,--fatal-warnings", *map(str, objects), "-o", "out.so"]
    run_compiler(command, directory)
    return ctypes.CDLL(str(directory / "out.so"))


def embedded(library: ctypes.CDLL, name: str) -> tuple[int, bytes]:
    """Return where a cubin begins, and its bytes with one more."""
    begin, end = getattr(library, f"begin_{name}"), getattr(library, f"end_{name}")
    begin.restype = end.restype = ctypes.c_void_p
    return begin(), ctypes.string_at(begin(), end() - begin() + 1)


def tool(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", "-m", "jitload.utils.embed_cubin", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def options(cubin: object, source: object, output: object, name: str = "k") -> list[str]:
    return ["--cubin", str(cubin), "--input-obj", str(source), "--output-obj", str(output), "--name", name]


def test_the_cubin_is_behind_its_symbols_and_nobody_else_sees_them(tmp_path):
    source, output = compile_c(tmp_path, "k"), tmp_path / "new" / "dir" / "k.o"
    done = tool(*options(CUBIN, source, output))
    assert (done.returncode, done.stdout, done.stderr) == (0, f"Created {output}\n", "")
    begin, data = embedded(link(tmp_path, output), "k")
    assert data == IMAGE + b"\0"
    assert begin % 16 == 0
    symbols = subprocess.run(["nm", str(output)], capture_output=True, text=True, check=True).stdout.splitlines()
    kinds = {line.split()[-1]: line.split()[-2] for line in symbols}
    assert {name: kind for name, kind in kinds.items() if kind != "U"} == {
        "__tvm_ffi__cubin_k": "r", "__tvm_ffi__cubin_k_end": "r", "begin_k": "T", "end_k": "T",
    }  # fmt: skip
    assert oct(output.stat().st_mode & 0o777) == oct(source.stat().st_mode & 0o777)
    assert os.listdir(output.parent) == ["k.o"]


def test_several_cubins_one_after_the_other(tmp_path):
    """And a fresh name in an object whose assembler left no note on the stack."""
    (tmp_path / "other.cubin").write_bytes(IMAGE + b"more")
    (tmp_path / "asm.s").write_text(".data\n.globl a\na: .quad __tvm_ffi__cubin_k\n")
    run_compiler(["-c", "asm.s", "-o", "asm.o"], tmp_path)
    source = compile_c(tmp_path, "k", "l")
    embed_cubin(CUBIN, source, source, "k")
    embed_cubin(tmp_path / "other.cubin", source, tmp_path / "both.o", "l")
    embed_cubin(CUBIN, tmp_path / "asm.o", tmp_path / "asm.o", "k")
    library = link(tmp_path, tmp_path / "both.o", tmp_path / "asm.o")
    assert embedded(library, "k")[1] == IMAGE + b"\0"
    assert embedded(library, "l")[1] == IMAGE + b"more\0"
    done = subprocess.run(["readelf", "-lW", str(tmp_path / "out.so")], capture_output=True, text=True, check=True)
    assert " RW  " in next(line for line in done.stdout.splitlines() if "GNU_STACK" in line)
    with pytest.raises(
        LoadError, match=r"both\.o already defines __tvm_ffi__cubin_l: embed into the object as the comp"
    ):
        embed_cubin(CUBIN, tmp_path / "both.o", tmp_path / "both.o", "l")


def test_an_object_that_does_not_ask_for_it_is_remarked_on(tmp_path):
    source = compile_c(tmp_path, "k", "l")
    done = tool(*options(CUBIN, source, source, "kk"), "--verbose")
    assert done.returncode == 0
    assert done.stderr == f"{source} has no TVM_FFI_EMBED_CUBIN(kk); names without a cubin: k, l\n"
    assert done.stdout == f"{source}: reader.o with {CUBIN} ({len(IMAGE)} bytes) as kk\n"


REFUSED = [
    ("cubin", None, 1, "CUBIN file not found: {}"),
    ("cubin", b"//\n.version 8.4\n.target sm_90\n", 2, "{}: these bytes are PTX: compile it with compile_cubin(ptx)"),
    ("object", None, 1, "Input object file not found: {}"),
    ("object", b"!<arch>\n", 2, "{} is not a 64-bit little-endian object file: it begins with b'!<arch>"),
    ("object", b"BC\xc0\xde\0\0\0\0", 2, "{} was compiled with -flto and holds no machine code yet."),
    ("object", IMAGE, 2, "{} is CUDA machine code; --input-obj must be the object of the C++"),
]


@pytest.mark.parametrize(("kind", "data", "code", "words"), REFUSED, ids=[row[3][:50] for row in REFUSED])
def test_other_files_are_refused(  # noqa: PLR0913, PLR0917  a row of the table
    kind, data, code, words, source, tmp_path, capsys
):
    bad = tmp_path / "bad file"
    if data is not None:
        bad.write_bytes(data)
    arguments = options(bad, source, tmp_path / "out.o") if kind == "cubin" else options(CUBIN, bad, tmp_path / "out.o")
    assert main(arguments) == code
    out, err = capsys.readouterr()
    assert (out, err.startswith("Error: " + words.format(bad)), err.count("\n")) == ("", True, 1), err
    assert not (tmp_path / "out.o").exists()


def test_objects_of_link_time_optimisation(tmp_path):
    source = compile_c(tmp_path, "k", flags=("-flto",))
    with pytest.raises(LoadError, match=r"reader\.o was compiled with -flto and holds no machine code yet\."):
        embed_cubin(CUBIN, source, source, "k")


@pytest.mark.parametrize("name", ["", "a-b", "3d", "ä"])
def test_a_name_that_is_not_a_cpp_name_is_refused(name, source):
    before = source.read_bytes()
    with pytest.raises(
        JitLoadError, match=r"--name is .*, which is not a C\+\+ name; TVM_FFI_EMBED_CUBIN needs ASCII letters"
    ):
        embed_cubin(CUBIN, source, source, name)
    assert source.read_bytes() == before


def test_paths_that_cannot_be_read_or_written_are_named(source, tmp_path, capsys):
    cubin = tmp_path / "k.cubin"
    cubin.write_bytes(IMAGE)
    with pytest.raises(LoadError, match=r"the output .*k\.cubin is the cubin itself"):
        embed_cubin(cubin, source, cubin, "k")
    (tmp_path / "file").write_text("")
    assert main(options(tmp_path, source, tmp_path / "o.o")) == 3
    assert main(options(cubin, source, tmp_path / "file" / "o.o")) == 3
    words = capsys.readouterr().err
    assert "Is a directory" in words
    assert "Not a directory" in words or "File exists" in words
    assert tool("--cubin", cubin).returncode == 2  # argparse
    assert sorted(os.listdir(tmp_path)) == ["file", "k.cubin", "reader.o"]


def compile_wrapper(directory: Path, flags: list[str]) -> Path:
    """Compile the guide's wrapper, which embeds two cubins."""
    run_compiler(["-std=c++17", "-fPIC", "-c", *flags, str(SOURCES / "guide.cc"), "-o", "w.o"], directory)
    return directory / "w.o"


@pytest.fixture(scope="module")
def wrapper(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the object of the wrapper with our header, without its cubins."""
    return compile_wrapper(tmp_path_factory.mktemp("wrapper"), include_flags(has_cuda=False))


def embed_both(wrapper: Path, directory: Path) -> None:
    """Embed the two cubins of the wrapper, by the function and by the tool, and write `two.o`."""
    embed_cubin(CUBIN, wrapper, directory / "one.o", "first")
    assert tool(*options(CUBIN, directory / "one.o", directory / "two.o", "second")).returncode == 0


def test_our_header_launches_what_was_embedded(wrapper, tmp_path, stub_driver):
    embed_both(wrapper, tmp_path)
    run_compiler(["-shared", "two.o", "-o", "w.so"], tmp_path)
    stub_driver.use_device(0)
    module = load(tmp_path / "w.so")
    x = CudaArray(np.zeros(5, np.float32))
    module.add_one(tensor_of(x), tensor_of(x))
    module.empty(0, 0)
    assert [(launch.kernel, launch.grid) for launch in stub_driver.launches()] == [
        ("add_one", (1, 1, 1)),
        ("empty", (1, 2, 3)),
    ]


def test_upstreams_header_links_with_what_was_embedded(tmp_path):
    if find_cuda_headers() is None:
        pytest.skip("CUDA's headers are not installed: nvidia-cuda-runtime and nvidia-cuda-crt")
    flags = [flag for flag in include_flags(has_cuda=True) if not flag.startswith("-I")]
    flags += ["-DTVM_FFI_CUBIN_LAUNCHER_USE_DRIVER_API=1"]
    flags += ["-DTVM_FFI_CHECK_CUDA_DRIVER_ERROR=TVM_FFI_CHECK_CUBIN_LAUNCHER_CUDA_ERROR"]  # in older releases
    embed_both(compile_wrapper(tmp_path, flags), tmp_path)
    run_compiler(["-shared", "two.o", "-o", "w.so"], tmp_path)
    data = (tmp_path / "w.so").read_bytes()
    assert data.count(IMAGE) == 2
    symbols = subprocess.run(["nm", "-D", str(tmp_path / "w.so")], capture_output=True, text=True, check=True).stdout
    assert "cubin" not in symbols
    assert "cuLibraryLoadData" in symbols


@pytest.mark.parametrize("symbols", [{"start": "", "end": "_end"}, {"start": ""}], ids=["start and end", "start"])
def test_symbols_of_ld_and_objcopy(symbols, wrapper, tmp_path, stub_driver):
    """The guide's own way: `ld -r -b binary`, then objcopy renames; the symbol of the end may be missing."""
    if not shutil.which("objcopy") or not shutil.which("ld"):
        pytest.skip("binutils are not installed")
    (tmp_path / "kernel.cubin").write_bytes(IMAGE)
    subprocess.run(["ld", "-r", "-b", "binary", "-o", "kernel_data.o", "kernel.cubin"], cwd=tmp_path, check=True)
    rename = ["--rename-section", ".data=.rodata,alloc,load,readonly,data,contents"]
    for from_objcopy, suffix in symbols.items():
        rename += ["--redefine-sym", f"_binary_kernel_cubin_{from_objcopy}=__tvm_ffi__cubin_first{suffix}"]
    subprocess.run(["objcopy", *rename, "kernel_data.o"], cwd=tmp_path, check=True)
    embed_cubin(CUBIN, wrapper, tmp_path / "w.o", "second")
    run_compiler(["-shared", "-Wl,-z,noexecstack", "w.o", "kernel_data.o", "-o", "w.so"], tmp_path)
    stub_driver.use_device(0)
    x = tensor_of(CudaArray(np.zeros(5, np.float32)))
    load(tmp_path / "w.so").add_one(x, x)
    assert [launch.grid for launch in stub_driver.launches()] == [(1, 1, 1)]


def test_bytes_that_nobody_knows_are_embedded_with_a_warning(tmp_path):
    """As upstream's tool does: a program may unpack them before the driver sees them."""
    data, bad = b"DUMMY_CUBIN_DATA_FOR_TESTING" * 10, tmp_path / "k.bin"
    bad.write_bytes(data)
    source = compile_c(tmp_path, "k")
    done = tool(*options(bad, source, source), "--verbose")
    assert done.returncode == 0
    assert done.stderr == (
        f"{bad} is neither a cubin nor a fatbin: it begins with b'DUMMY_CU'; it is embedded as it is\n"
    )
    assert done.stdout == f"{source}: reader.o with {bad} (280 bytes) as k\n"
    assert embedded(link(tmp_path, source), "k")[1] == data + b"\0"


@pytest.mark.parametrize("cut", [20, 40, 400, -1])
def test_a_fatbin_that_is_cut_off_is_refused(cut, tmp_path):
    whole = fatbin_of((2, 90, IMAGE))
    with pytest.raises(LoadError, match=r"^k: this fatbin is damaged or cut off \(its header states \d+ bytes"):
        read_fatbin(whole[:cut], name="k")
    with pytest.raises(LoadError, match="it has no image"):
        read_fatbin(fatbin_of(), name="k")
    shifted = whole[:24] + struct.pack("<Q", len(whole)) + whole[32:]
    with pytest.raises(LoadError, match="the header of the image at byte"):
        read_fatbin(shifted, name="k")


def test_code_is_chosen_for_an_architecture_with_regard_to_suffixes():
    arch_specific, family = 1 << 20, 1 << 21
    entries = read_fatbin(
        fatbin_of(
            (1, 80, b"80"), (1, 90, b"90a", arch_specific), (1, 100, b"100f", family), (1, 100, b"100a", arch_specific)
        )
    )
    assert [entry.arch for entry in entries] == ["compute_80", "compute_90a", "compute_100f", "compute_100a"]
    chosen = {"sm_75": "", "sm_90": "80", "sm_90a": "90a", "sm_100": "100f", "sm_100a": "100a"}
    assert {arch: select_image(entries, arch, is_ptx=True).decode() for arch in chosen} == chosen
    assert [select_image(entries, arch, is_ptx=True) for arch in ("sm_103a", "sm_120")] == [b"100f", b"80"]
    cubins = [FatbinEntry(arch=arch, code=arch.encode()) for arch in ("sm_100a", "sm_100f", "sm_100")]
    assert [select_image(cubins, arch, is_ptx=False) for arch in ("sm_100a", "sm_103")] == [b"sm_100a", b"sm_100f"]


def test_nvidias_fatbins_are_read_and_written_alike(tmp_path):
    if not shutil.which("nvcc") or not shutil.which("fatbinary"):
        pytest.skip("needs nvcc")
    (tmp_path / "k.cu").write_text('extern "C" __global__ void add(float* x) { *x += 1; }\n')
    codes = [f"-gencode=arch=compute_{code}" for code in ("90a,code=[sm_90a,compute_90a]", "100f,code=compute_100f")]
    subprocess.run(["nvcc", "-fatbin", *codes, "k.cu", "-o", "k.fatbin"], cwd=tmp_path, check=True, capture_output=True)
    fatbin = (tmp_path / "k.fatbin").read_bytes()
    assert sorted(entry.arch for entry in read_fatbin(fatbin)) == ["compute_100f", "compute_90a", "sm_90a"]
    assert all(symbols == ["add"] for _, symbols in symbols_in(fatbin))
    images, cubins = [], []
    for arch in ("80", "90a"):
        subprocess.run(["nvcc", "-cubin", f"-arch=sm_{arch}", "k.cu", "-o", arch], cwd=tmp_path, check=True)
        images.append(f"--image3=kind=elf,sm={arch},file={arch}")
        cubins.append((f"sm_{arch}", (tmp_path / arch).read_bytes()))
    subprocess.run(["fatbinary", "--create=theirs", "--compress=false", *images], cwd=tmp_path, check=True)
    assert make_fatbin(cubins) == (tmp_path / "theirs").read_bytes()
