"""Generated wrappers and records, also for unusual names and docstrings."""

import ctypes
import json
import platform
import re
import subprocess

from builds import build, kernel, load
from support.wrappers import INCLUDE, compile_strictly

from jitload import Launch
from jitload.building.runtime import include_flags
from jitload.codegen import record as records
from jitload.codegen.kernel import _FIRST_VALUE
from jitload.element_types import ELEMENT_TYPES
from jitload.expressions.compiler import _COMPARISONS
from jitload.request.launch import LAUNCH_ATTRIBUTES

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


def test_wrappers_compile_without_a_warning(tmp_path):
    entry = build(SOURCE, functions=FUNCTIONS, arch=("sm_80", "sm_90a", "cpu")).parent
    for flag in ("-DPLAIN", "-U__ELF__", LANDING_PADS):  # exports in assembler, in C++, with pads
        compile_strictly(entry, [flag], tmp_path / "wrapper.o")


def dlpack_constant(dtype: str) -> str:
    """Return DLPack's name of a dtype's code: `kDLUInt` for `uint8`, but `kDLFloat8_e5m2` for `float8_e5m2`."""
    base = dtype if dtype.startswith("float8") else dtype.rstrip("0123456789")
    return "kDL" + base.capitalize().replace("Uint", "UInt")


CONSTANTS = {
    **{f"JITLOAD_{name}": number for name, number in records._declarations()[0].items()},
    **{dlpack_constant(dtype): row.code for dtype, row in ELEMENT_TYPES.items()},
    **{f"JITLOAD_OP_{name}": records.constant("op_lt") + n for n, name in enumerate(_COMPARISONS.values())},
    "JITLOAD_FIRST_VALUE": _FIRST_VALUE,
    "JITLOAD_LAUNCH_COOPERATIVE": LAUNCH_ATTRIBUTES["cooperative"].number,
    "JITLOAD_LAUNCH_CLUSTER": LAUNCH_ATTRIBUTES["cluster"].number,
}


def test_records_have_the_layout_and_the_constants_of_the_headers(tmp_path):
    lines = [
        "#include <stddef.h>\n#include <dlpack/dlpack.h>",
        *(f"#include <jitload/{name}.h>" for name in ("triton", "expression", "driver")),
    ]
    for name in records._declarations()[1]:
        form = records.layout(name)
        lines.append(f'static_assert(sizeof(jitload_{name}) == {ctypes.sizeof(form)}, "{name}");')
        for member, _ in form._fields_:
            offset = getattr(form, member).offset
            lines.append(f'static_assert(offsetof(jitload_{name}, {member}) == {offset}, "{name}.{member}");')
    lines += [f'static_assert((int){name} == {number}, "{name}");' for name, number in CONSTANTS.items()]
    (tmp_path / "layout.cc").write_text("\n".join(lines))
    command = ["c++", "-fsyntax-only", *include_flags(), "layout.cc"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stderr == ""


def test_a_launch_in_hand_written_cpp_has_room_for_its_attributes():
    header = (INCLUDE / "jitload" / "launch_config.h").read_text()
    added = set(re.findall(r"\bAttribute\((CU_\w+)\)", header))
    assert len(added) == int(re.search(r"kMaxAttributes = (\d+)", header)[1])


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
