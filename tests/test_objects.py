"""An object instead of a library: a link of the user's own makes a library of it that works."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from builds import ADD, ARCH, ROOT

import jitload
from jitload.device.elf import read_dynamic_symbols
from jitload.errors import CacheError

CUBIN = (ROOT / "tests" / "data" / "stub_kernels.sm_90.cubin").read_bytes()
WRAPPER = """\
#include <tvm/ffi/extra/cuda/cubin_launcher.h>
TVM_FFI_EMBED_CUBIN(first);
void Run() { static auto kernel = TVM_FFI_EMBED_CUBIN_GET_KERNEL(first, "empty"); }
int twice(int n) { return 2 * n; }
TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, Run);
"""


def link(built: str, tmp_path: Path, *others: str) -> Path:
    """Link as a user does: with the compiler, and nothing of jitload's."""
    library = tmp_path / "own.so"
    subprocess.run(["c++", "-shared", built, *others, "-o", str(library)], check=True)
    return library


def test_an_object_of_kernels_becomes_a_library(tmp_path):
    built = jitload.build_inline("m", cuda_sources=ADD, arch=ARCH, output=tmp_path / "m.o")
    assert built == str(tmp_path / "m.o")
    library = link(built, tmp_path)
    direct = Path(jitload.build_inline("m", cuda_sources=ADD, arch=ARCH))
    assert set(read_dynamic_symbols(direct.read_bytes()).offered) <= set(
        read_dynamic_symbols(library.read_bytes()).offered
    )
    assert (direct.parent / f"{ARCH}.cubin").read_bytes() in library.read_bytes()
    module = jitload.load_module(library)
    assert list(module) == ["add"]
    assert module.add.kernel.name == "add"


def test_a_damaged_object_is_no_part_of_one(tmp_path):
    text = ADD + "// damaged\n"
    direct = Path(jitload.build_inline("m", cuda_sources=text, arch=ARCH))
    (direct.parent / "wrapper.o").write_bytes(b"not what it was")
    with pytest.raises(CacheError, match=r"is damaged: wrapper\.o has 15 bytes, not \d+\. Remove it and build again"):
        jitload.build_inline("m", cuda_sources=text, arch=ARCH, output=tmp_path / "m.o")
    assert not (tmp_path / "m.o").exists()


def test_an_object_of_cpp_by_hand_becomes_a_library(tmp_path):
    (tmp_path / "extra.cc").write_text('extern "C" int extra() { return 5; }\n')
    subprocess.run(["c++", "-fPIC", "-c", "extra.cc"], cwd=tmp_path, check=True)
    built = jitload.build_inline(
        "m",
        cuda_sources='extern "C" int extra();\nint sum(int n) { return n + extra(); }\n' + WRAPPER,
        functions=["twice", "sum"],
        embed_cubin={"first": CUBIN},
        output=tmp_path / "deep" / "m.o",
    )
    library = link(built, tmp_path, str(tmp_path / "extra.o"))
    module = jitload.load_module(library)
    assert (module.twice(21), module.sum(1)) == (42, 6)
    assert "run" in list(module)
    assert CUBIN in library.read_bytes()
    assert not [name for name in read_dynamic_symbols(library.read_bytes()).offered if "jitload" in name]
