"""Generated wrappers, records and build files, also for unusual names and docstrings."""

import ctypes
import json
import platform
import re
import subprocess

import pytest
from builds import build, kernel, load
from support.record import Reader
from support.wrappers import INCLUDE, compile_strictly

from jitload import Launch
from jitload.building.ninja import compile_step, link_step, ninja_text
from jitload.building.runtime import include_flags
from jitload.codegen import record as records
from jitload.codegen.kernel import _FIRST_VALUE
from jitload.codegen.wrapper import (
    EmbeddedImage,
    Wrapper,
    c_string,
    describe_wrapper,
    render_wrapper,
)
from jitload.element_types import ELEMENT_TYPES
from jitload.expressions.compiler import OP_NAMES
from jitload.model import ImageKernel, ParameterSlot, Variable
from jitload.request.launch import LAUNCH_ATTRIBUTES
from jitload.signature.exports import Export
from jitload.signature.kernels import make_typed_kernel

LANDING_PADS = "-fcf-protection" if platform.machine() == "x86_64" else "-mbranch-protection=standard"
SOURCE = """
struct Params { float a; int b[2]; };
namespace ns { __constant__ float coeffs[16]; }
extern "C" __global__ void every(const float* f, unsigned char* h, const float4* v, void* any, bool flag, long long i64,
                                 double f64, Params by_value) {}
template <class T, int N> __global__ void matmul(const T* a, T* b, int rows, int columns) { b[0] = ns::coeffs[N]; }
extern "C" __global__ void none() { extern __shared__ float tile[]; tile[0] = 1; }
"""
FUNCTIONS = {
    "every": Launch(nullable="f", raw_pointers="any", strided=("v", "f"), doc="All of them."),
    "matmul": Launch(
        kernel="matmul<float, 4>",
        grid=("ceil_div(columns, 32)", "ceil_div(a.shape[0], 32) if rows > 0 else 0"),
        block=(32, "min(rows, 8)"),
        args={"columns": "a.size(1)", "rows": "a.numel() // columns"},
    ),
    "none": Launch(grid=1, block=1, shared_bytes=1024, pdl=True, priority=-2),
}


@pytest.mark.parametrize("standard", ["c11", "c++17"])
@pytest.mark.parametrize("header", ["record.h", "expression.h", "triton.h", "cpu.h", "driver.h"])
def test_a_header_needs_no_other_and_bears_the_systems(header, standard, tmp_path):
    source = tmp_path / "source.txt"
    system = "".join(f"#include <{name}.h>\n" for name in ("stdint", "stddef", "stdlib"))
    for text in (f"#include <jitload/{header}>\n{system}", f"{system}#include <jitload/{header}>\n"):
        source.write_text(text)
        language = ["-x", standard.rstrip("0123456789"), f"-std={standard}"]
        flags = ["-Wall", "-Wextra", "-Werror", "-pedantic", "-fsyntax-only", *include_flags()]
        done = subprocess.run(["c++", *flags, *language, str(source)], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")


def test_wrappers_compile_without_a_warning(tmp_path):
    entry = build(SOURCE, functions=FUNCTIONS, arch=("sm_80", "sm_90a", "cpu")).parent
    for flag in ("-DPLAIN", "-U__ELF__", LANDING_PADS):  # exports in assembler, in C++, with pads
        compile_strictly(entry, [flag], tmp_path / "wrapper.o")


LINK_FLAGS = "-shared -s -Wl,-z,now -Wl,-z,nodelete -Wl,-z,noexecstack -nostartfiles -nodefaultlibs -lgcc"
BUILD_FILE = f"""\
rule step0
  command = c++ -m64 -O0 '-I/with space/$$x:y' '-DQ='"'"'"'"'"'' -c wrapper.cc -o wrapper.o
  description = wrapper.o
build wrapper.o: step0 wrapper.cc | a$ b.cubin
rule step1
  command = c++ w.o '/cache $$(of) me/run:time.o' -o vec.so {LINK_FLAGS}
  description = vec.so
build vec.so: step1 w.o /cache$ $$(of)$ me/run$:time.o
"""


def test_a_build_file_is_quoted_for_ninja_and_the_shell():
    steps = (
        compile_step(
            ("c++", "-m64"), ("-O0", "-I/with space/$x:y", "-DQ='\"'"), "wrapper.cc", "wrapper.o", reads=("a b.cubin",)
        ),
        link_step(("c++",), ("w.o", "/cache $(of) me/run:time.o"), "vec.so"),
    )
    assert ninja_text(steps) == BUILD_FILE


def dlpack_constant(dtype: str) -> str:
    """Return DLPack's name of a dtype's code: `kDLUInt` for `uint8`, but `kDLFloat8_e5m2` for `float8_e5m2`."""
    base = dtype if dtype.startswith("float8") else dtype.rstrip("0123456789")
    return "kDL" + base.capitalize().replace("Uint", "UInt")


CONSTANTS = {
    "JITLOAD_ABI": records.ABI,
    **{f"JITLOAD_{name.upper()}": number for name, number in records.KINDS.items()},
    **{f"JITLOAD_{name.upper()}": number for name, number in records.PARAM_FLAGS.items()},
    **{f"JITLOAD_{name.upper()}": number for name, number in records.KERNEL_FLAGS.items()},
    **{dlpack_constant(dtype): row.code for dtype, row in ELEMENT_TYPES.items()},
    **{f"JITLOAD_{name.upper()}": number for name, number in records.ASSUMPTIONS.items()},
    **{f"JITLOAD_{name.upper()}": number for name, number in records.PARTS.items()},
    **{f"JITLOAD_OP_{name}": number for number, name in enumerate(OP_NAMES)},
    "JITLOAD_FIRST_VALUE": _FIRST_VALUE,
    "JITLOAD_LAUNCH_COOPERATIVE": LAUNCH_ATTRIBUTES["cooperative"].number,
    "JITLOAD_LAUNCH_CLUSTER": LAUNCH_ATTRIBUTES["cluster"].number,
}


def test_records_have_the_layout_and_the_constants_of_the_headers(tmp_path):
    lines = [
        "#include <stddef.h>\n#include <dlpack/dlpack.h>",
        *(f"#include <jitload/{name}.h>" for name in ("triton", "expression", "driver")),
    ]
    for name in records.STRUCTURES:
        form = records.layout(name)
        size = ctypes.sizeof(form) + (ctypes.sizeof(records.layout("module")) if name == "record" else 0)
        lines.append(f'static_assert(sizeof(jitload_{name}) == {size}, "{name}");')
        for member, _ in form._fields_:
            offset = getattr(form, member).offset
            lines.append(f'static_assert(offsetof(jitload_{name}, {member}) == {offset}, "{name}.{member}");')
    lines += [f'static_assert((int){name} == {number}, "{name}");' for name, number in CONSTANTS.items()]
    (tmp_path / "layout.cc").write_text("\n".join(lines))
    command = ["c++", "-fsyntax-only", *include_flags(), "layout.cc"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stderr == ""


@pytest.mark.parametrize("value", [2**31, -(2**31) - 1, (1,)])
def test_a_number_that_a_structure_cannot_hold_is_an_error(value):
    with pytest.raises((OverflowError, TypeError)):
        records.write_record(records.Struct("module", {"image_count": value}))


def test_a_launch_in_hand_written_cpp_has_room_for_its_attributes():
    header = (INCLUDE / "jitload" / "launch_config.h").read_text()
    added = set(re.findall(r"\bAttribute\((CU_\w+)\)", header))
    assert len(added) == int(re.search(r"kMaxAttributes = (\d+)", header)[1])


# ---- hostile texts ---------------------------------------------------------------------------------------------

HOSTILE = [
    'say "hello"',
    "back\\slash \\",
    "*/ #error out\n/*",
    "trigraphs ??/ ??= ??'",
    "line\nline\r\n\tx\x0b\x0c\x1b[31m",
    "größer 値 😀 \u2028 \u200b",
    '"); system("touch /tmp/owned"); //',
    "octal \\101 after \x011",
    "%s %n {{ wrapper }} {% raw %} ${x} $(x) `x`",
    "\x7f\x80\xff",
    "x" * 70_000,
    "",
]


def unescape(literal: str) -> bytes:
    """Read a C string literal."""
    assert literal[0] == literal[-1] == '"'
    body = re.sub(r'\\([0-7]{3}|["\\])', lambda m: chr(int(m[1], 8)) if len(m[1]) == 3 else m[1], literal[1:-1])
    return body.encode("latin-1")


@pytest.mark.parametrize("text", HOSTILE)
def test_a_string_literal_holds_what_it_was_given(text):
    literal = c_string(text)
    assert re.fullmatch(r'"(?:[ !#->@-\[\]-~]|\\["\\]|\\[0-7]{3})*"', literal)
    assert unescape(literal) == text.encode()


def test_hostile_texts_stay_in_their_literals():
    image = ImageKernel(
        symbol="k", slots=(ParameterSlot(0, 8),), registers=16, shared_bytes=0, local_bytes=0, max_threads=1024
    )
    exports = [
        Export(name=f"f{i}", kernel=make_typed_kernel(image, ["float*"], ["x"], name=f"k{i}<{text[:100]}>"),
               launch=Launch(), doc=text)
        for i, text in enumerate(HOSTILE)
    ]  # fmt: skip
    hostile = Wrapper(
        name='"); #include "x"\n*/',
        archs=("sm_90a",),
        images=(EmbeddedImage("vec_sm_90a", "sm_90a.cubin", "sm_90a"),),
        exports=tuple(exports),
        variables=(Variable(name='v"\n', symbol="s\\", size=1),),
    )
    record, facts = describe_wrapper(hostile)
    text = render_wrapper(facts)
    assert text.isascii()
    for word in ("system", "error", "touch", "raw", "owned", "hello"):
        assert word not in text
    assert text.count("#include") == 1
    reader = Reader(record)
    assert json.loads(reader.text(reader.module["description"]))["functions"][6]["doc"] == HOSTILE[6]
    assert [reader.text(kernel["doc"]) for kernel in reader.kernels()] == HOSTILE


def test_hostile_docs_and_names_arrive_whole():
    docs = {f"f{number}": text for number, text in enumerate(HOSTILE)}
    source = "".join(map(kernel, docs))
    module = load(source, '"); system("x")', functions=docs)
    assert {name: module.get_function_doc(name) or "" for name in module} == docs
    assert json.loads(module.get_function_metadata("f0")["type_schema"])["type"] == "ffi.Function"


def test_the_library_exports_its_functions_and_nothing_else():
    path = build(kernel("k"), functions={"k": Launch(grid=1, block=1)})
    done = subprocess.run(["nm", "-D", "--defined-only", str(path)], capture_output=True, text=True, check=True)
    exported = {line.split()[-1] for line in done.stdout.splitlines()}
    assert {"__tvm_ffi_k", "__tvm_ffi__metadata_k", "__tvm_ffi__doc_k", "__tvm_ffi__jitload_describe"} <= exported
    assert all(name.startswith("__tvm_ffi_") for name in exported)
    needed = subprocess.run(["readelf", "-d", str(path)], capture_output=True, text=True, check=True).stdout
    assert "cuda" not in needed
    assert "libstdc++" not in needed
    assert ctypes.sizeof(ctypes.c_void_p) == 8
