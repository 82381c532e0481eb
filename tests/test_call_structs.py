"""Structures and vectors by value, pointers to pointers, and the types of variables: what a call accepts."""

import ctypes
from ctypes import c_double, c_float, c_int, c_ubyte, c_uint
from typing import Any

import numpy as np
import pytest
import torch

import jitload
from jitload.cpptext.reading import SourceReading
from jitload.signature.layouts import layout_queries

SOURCE = r"""
#include <cuda_fp16.h>
struct Pair { float a; int b; };
enum class Mode : short { LOW = -3, HIGH = 700 };
namespace ns {
__device__ float table[4];
__constant__ Pair pairs[3];
static __device__ Mode mode;
}
__device__ float2 points[2];
extern "C" __global__ void two(int2 v, Pair p, int* out) { out[0] = v.x; out[1] = v.y; out[2] = p.a; out[3] = p.b; }
extern "C" __global__ void vectors(dim3 g, float4 f, uchar2 u, longlong3 l, double* out) {
    out[0] = g.x, out[1] = g.y, out[2] = g.z, out[3] = f.x, out[4] = f.w, out[5] = u.y, out[6] = l.z;
}
extern "C" __global__ void halves(__half2 h, char3 c, float* out) { out[0] = __high2float(h), out[1] = c.z; }
extern "C" __global__ void rows(const float* const* rows, void** any, float* out) { out[0] = rows[1][0]; }
"""
NAMES = ("two", "vectors", "halves", "rows")


@pytest.fixture(scope="module")
def mod() -> jitload.Module:
    launches = {name: jitload.Launch(grid=1, block=1) for name in NAMES}
    return jitload.load_inline("structs", cuda_sources=SOURCE, functions=launches, arch="cpu")


def structure(*fields: tuple[Any, ...], base: Any = ctypes.Structure, **attributes: Any) -> Any:
    return type("Made", (base,), {**attributes, "_fields_": fields})


PAIR = structure(("a", c_float), ("b", c_int))


def test_the_compilers_tell_the_members_of_structures(mod):
    cubin = jitload.compile_cubin(SOURCE, arch="sm_90")
    for kernels in (cubin.kernels, [mod[name].kernel for name in NAMES]):
        layouts = {kernel.name: [p.layout for p in kernel.parameters if p.kind == "struct"] for kernel in kernels}
        assert layouts["two"] == ["=i4*2@0", "f4*1@0;i4*1@4"]
        assert layouts["vectors"] == ["=u4*3@0", "=f4*4@0", "=u1*2@0", "=i8*3@0"]
        assert layouts["halves"] == ["=f2*2@0", "=i1*3@0"]
    dtypes = {"ns::table": "float32", "ns::pairs": None, "ns::mode": "int16", "points": "float32"}
    assert {v.name: v.dtype for v in cubin.variables if v.name in dtypes} == dtypes
    assert "offsetof" not in cubin.log


@pytest.mark.parametrize(
    ("vector", "pair"),
    [
        ((1, 2), PAIR(3, 4)),
        ([1, True], bytes(PAIR(3, 4))),
        ((np.int32(1), np.int64(2)), bytearray(8)),
        ((c_int * 2)(1, 2), (c_ubyte * 8)()),
        (structure(("x", c_uint), ("y", c_uint))(1, 2), structure(("b", c_int), base=structure(("a", c_float)))(3, 4)),
        (structure(("xy", c_int * 2))((1, 2)), np.zeros(1, "f4,i4")[0]),
    ],
)
def test_structures_with_the_members_of_the_source_are_accepted(mod, vector, pair):
    out = torch.full((4,), -1, dtype=torch.int32)
    for _ in range(2):  # the second time, the type was compared before
        mod.two(vector, pair, out)
        expected = list(vector) if isinstance(vector, tuple | list) else [1, 2]
        members = np.frombuffer(bytes(pair), "f4,i4")[0]
        assert out.tolist() == [*map(int, expected), int(members[0]), int(members[1])]


FLOAT = "where Pair has a float of 4"
SWAPPED = structure(("b", c_int), ("a", c_float))
REFUSED: list[tuple[Any, Any, str]] = [
    ((c_float * 2)(1, 2), PAIR(), r"'v' \(int2\): \S+c_float_Array_2 has a float of 4 bytes at byte 0, where int2 has"),
    ((1, 2), SWAPPED(), rf"'p' \(Pair\): \S+Made has an integer of 4 bytes at byte 0, {FLOAT}"),
    ((1, 2), structure(*PAIR._fields_, base=ctypes.BigEndianStructure)(), "has bytes in the other order"),
    ((1, 2, 3), PAIR(), r"'v' \(int2\) must have 2 numbers, got 3"),
    ((1, 2.5), PAIR(), r"'v' \(int2\) must have whole numbers, got float"),
    ((1, 2**31), PAIR(), r"'v' \(int2\) must be from -2147483648 to 2147483647, got 2147483648"),
    ("12", PAIR(), "'v' must be a tuple of 2 numbers, bytes or a ctypes structure of 8 bytes, got str"),
    ((1, 2), (1, 2), "'p' must be bytes or a ctypes structure of 8 bytes, got a list or tuple"),
]  # fmt: skip


@pytest.mark.parametrize(("vector", "pair", "message"), REFUSED)
def test_other_members_are_refused(mod, vector, pair, message):
    out = torch.full((4,), -1, dtype=torch.int32)
    with pytest.raises((TypeError, ValueError), match=message):
        mod.two(vector, pair, out)
    assert out.tolist() == [-1] * 4


def test_nvrtc_before_13_5_knows_the_offsets():
    text = "struct Pair { float a; int b; }; __global__ void k(Pair p) {}"
    (expression,) = layout_queries(SourceReading((text,), (), ()), (), (), is_nvrtc=True).expressions
    assert "__INTADDR__(&((Pair*)0)->b)" in expression
    assert "__builtin_offsetof" not in expression


def test_vectors_take_tuples_of_numbers(mod):
    out = torch.zeros(7, dtype=torch.float64)
    mod.vectors((4, 5, 6), (1.5, 2, 3, np.float32(4.5)), [1, 255], (0, 0, -(2**40)), out)
    assert out.tolist() == [4, 5, 6, 1.5, 4.5, 255, -(2**40)]
    mod.vectors((4,), (1, 2, 3, 4), (1, 2), (1, 2, 3), out)  # as in CUDA, the rest of a dim3 is 1
    assert out[:3].tolist() == [4, 1, 1]
    for wrong in ((), (1, 2, 3, 4), (-1,), (1.0,)):
        with pytest.raises((TypeError, ValueError), match=r"'g' \(dim3\) must"):
            mod.vectors(wrong, (1, 2, 3, 4), (1, 2), (1, 2, 3), out)
    single = torch.zeros(2)
    mod.halves((1, 2.5), (1, 2, -3), single)
    assert single.tolist() == [2.5, -3]


def test_a_pointer_to_pointers_takes_addresses(mod):
    x, out = torch.tensor([5.0]), torch.zeros(1)
    addresses = [x.data_ptr()] * 2
    for dtype in (torch.int64, torch.uint64):
        mod.rows(torch.tensor(addresses, dtype=dtype), torch.tensor(addresses, dtype=dtype), out.zero_())
        assert out.item() == 5
    for wrong in (x, torch.tensor([1], dtype=torch.int32), torch.zeros(1, dtype=torch.complex64)):
        with pytest.raises(
            TypeError, match=r"must be an int64 CPU tensor of addresses \(torch.tensor\(\[x.data_ptr\(\) for"
        ):
            mod.rows(wrong, torch.tensor(addresses), out)
        with pytest.raises(TypeError, match=r"argument 'any' must be an int64 CPU tensor of addresses"):
            mod.rows(torch.tensor(addresses), wrong, out)


# A structure, and the layout of a parameter of that type.
LAYOUTS = {
    "template <class T> struct Box { T value; int n; }; @ Box<double>": "f8*1@0;i4*1@8;?4*1@12",
    "template <class A, char N> struct Two { A a; Box<A> b[N]; }; struct Twos { Two<float, 2> t[1]; }; @ Twos":
        "f4*1@0;f4*1@4;i4*1@8;f4*1@12;i4*1@16",
    "struct D : public Box<float> { short s; }; @ D": "i2*1@8;?8*1@0;?2*1@10",
    "struct Un { float q; union { int i; float f; }; struct { float x; struct { int y; } in; }; }; @ Un":
        "f4*1@0;?12*1@4",
    "#define FIELD(t, n) t n;\nstruct Mac { int a; FIELD(float, x) int y; }; @ Mac": "i4*1@0;?8*1@4",
    "#define HIDDEN char c;\n#define VIA HIDDEN\nstruct Hid { char a; VIA int n; }; @ Hid": "i1*1@0;i4*1@4;?3*1@1",
    "#define REAL float\n#define N 2\nstruct Plain { REAL a[N][3]; float4 v[N]; }; @ Plain":
        "f4*6@0/12;f4*8@32/16;?8*1@24",
    "struct Bits { template <class T, T = T{}> struct In; float a; int b, c : 3; }; @ Bits": "f4*1@0;i4*1@4;?4*1@8",
    "struct Arr { __half h; dim3 g; enum K { A1 } k; void (*f)(int); unsigned char t[2][2][2]; }; @ Arr":
        "f2*1@0;u4*3@4;u8*1@24;u1*8@32/4/2;?2*1@2;?8*1@16",
    "struct Virt { __device__ Virt() : n(1) {} int n; __device__ int get() const { return n; } static const int S = 1;"
    " __device__ operator int() const { return n; } }; @ Virt": "i4*1@0",
    "template <class T> struct Spec { T a; }; template <> struct Spec<int> { int a, b; }; @ Spec<int>": "i4*1@0;i4*1@4",
    '#include "params.h"\nstruct Outer { lib::Params p; }; @ Outer': "f4*3@0;i4*1@12",
    "struct Shadow : Box<float> { int n; }; @ Shadow": "i4*1@8;?8*1@0",
    "struct __attribute__((packed)) Packed { char c; float a; }; @ Packed": "i1*1@0;f4*1@1",
    "#define KIND struct\nKIND Unread { float x; }; @ Unread": "",
    "struct Q { float x, y; int n; }; typedef Q R; typedef const R S; @ S": "f4*1@0;f4*1@4;i4*1@8",
    "namespace na { namespace nb { struct U { float x; }; } using V = nb::U; } @ na::V": "f4*1@0",
    "using A = Q; using B = A; struct H { B b; }; @ H": "f4*1@0;f4*1@4;i4*1@8",
    "struct Pair { float a; int b; }; enum class Mode : short { LOW = -3 }; typedef struct Tag { double x, *p, y[3];"
    " unsigned char tag[3]; Pair pairs[2]; Mode m; float4 v; bool on : 1; } Tagged; @ Tagged":
        "f8*1@0;u8*1@8;f8*3@16;u1*3@40;f4*1@44;i4*1@48;f4*1@52;i4*1@56;i2*1@60;f4*4@64;?1*1@43;?2*1@62;?16*1@80",
    "class Hidden { int secret; public: float seen; static const int N1 = 3; }; @ Hidden": "f4*1@4;?4*1@0",
    "union Either { int i; float f; }; @ Either": "",
    "struct Wide { " + " ".join(f"float f{i};" for i in range(40)) + " }; @ Wide":
        ";".join(f"f4*1@{4 * i}" for i in range(40)),
    "struct En { alignas(8) enum K { A2 } k; const enum K l; int n; __device__ void f(enum K k) {} enum L { B2 };"
    " unsigned int (En::*m)(int); }; @ En": "i4*1@8;?8*1@0;?20*1@12",
    "\n#define ROW 2\n#define SIZE 2 * ROW\nstruct Sized { float a[SIZE]; int b; }; @ Sized": "f4*4@0;i4*1@16",
    "struct Es { int n; enum K { A3 } k; int m; __extension__ union { int i; float f; }; Es(*g)(Es); int l; }; @ Es":
        "i4*1@0;i4*1@8;u8*1@16;i4*1@24;?4*1@4;?4*1@12;?4*1@28",
}  # fmt: skip


def test_each_kind_of_structure_has_a_layout(tmp_path):
    (tmp_path / "params.h").write_text("#pragma once\nnamespace lib { struct Params { float x[3]; int n; }; }")
    code = "\n".join(text.rpartition(" @ ")[0] for text in LAYOUTS)
    parameters = ", ".join(f"{text.rpartition(' @ ')[2]} p{i}" for i, text in enumerate(LAYOUTS))
    code = f"""#include <cuda_fp16.h>
        {code}
        extern "C" __global__ void k({parameters}) {{}}
        template <class T, class P> __global__ void t(Box<T> box, P p) {{}}"""
    launches = {
        name: jitload.Launch(grid=1, block=1, kernel=k) for name, k in (("k", None), ("t", "t<short, Two<int, 1>>"))
    }
    mod = jitload.load_inline(
        "layouts", cuda_sources=code, functions=launches, arch="cpu", extra_include_paths=[str(tmp_path)]
    )
    cubin = jitload.compile_cubin(code, arch="sm_90", extra_include_paths=[str(tmp_path)])
    for kernel in (mod["k"].kernel, cubin.kernels[0]):
        assert [parameter.layout for parameter in kernel.parameters] == [*LAYOUTS.values()]
    assert [p.layout for p in mod["t"].kernel.parameters] == ["i2*1@0;i4*1@4;?2*1@2", "i4*1@0;i4*1@4;i4*1@8"]
    arguments = [bytes(parameter.size) for parameter in mod["k"].kernel.parameters]
    mod["k"](*arguments)
    rows, wrong = (
        structure(("a", row), ("pad", c_ubyte * 8), ("v", c_float * 4 * 2))
        for row in (c_float * 3 * 2, c_float * 2 * 3)
    )
    cases = [
        (6, rows, ""), (6, wrong, "has rows of 8 bytes in the array at byte 0"),
        (4, structure(("a", c_int), ("x", c_float), ("y", c_int)), "has a float of 4 bytes at byte 4, where jitload"),
        (4, structure(("a", c_int), ("x", c_ubyte * 8)), ""),
        (7, structure(("a", c_float), ("b", c_int), ("c", c_int, 3)), ""),
        (14, c_float, r"has a float of 4 bytes at byte 0, where jitload knows no member of .* pass bytes"),
        (14, c_ubyte * 4, ""), (0, structure(("v", c_double), ("n", c_int), ("n2", c_int)), "bytes at byte 12, where"),
    ]  # fmt: skip
    for index, type_, message in cases:
        called = [*arguments[:index], type_(), *arguments[index + 1 :]]
        if message:
            with pytest.raises(TypeError, match=message):
                mod["k"](*called)
        else:
            mod["k"](*called)


def test_a_structure_in_an_anonymous_namespace_has_a_layout():
    """NVRTC does not report that `__jitload_members` has no definition, but reports functions of the source."""
    text = """namespace { struct P { float* x; int n; }; __device__ int %s(int n)%s }
    __global__ void k(P p) { *p.x = f(p.n); }"""
    (kernel,) = jitload.compile_cubin(text % ("f", " { return n; }"), arch="sm_90a").kernels
    assert [parameter.layout for parameter in kernel.parameters] == ["u8*1@0;i4*1@8;?4*1@12"]
    with pytest.raises(
        jitload.errors.CompileError, match=r'^.*kernel.cu:1: function "<unnamed>::f" was referenced but'
    ):
        jitload.compile_cubin(text % ("f", ";"), arch="sm_90a")


def test_an_array_of_records_is_not_a_record(mod):
    out = torch.zeros(4, dtype=torch.int32)
    record = np.array((3, 4), "f4,i4")
    for records, item in ((record, r"\[\(\)\]"), (record.reshape(1), r"\[0\]"), (record.reshape(1, 1), r"\[0, 0\]")):
        with pytest.raises(TypeError, match=rf"'p' takes one record, .*: pass the item {item} of the array"):
            mod.two((1, 2), records, out)
    mod.two((1, 2), record[()], out)
    assert out.tolist() == [1, 2, 3, 4]


def test_a_masked_array_is_refused(mod):
    masked = np.ma.masked_array(np.ones(4, "i4"), mask=[1, 0, 0, 0])
    plain = np.zeros(4, "i4")
    for _ in range(2):
        with pytest.raises(TypeError, match=r"argument 'out' is a masked array, .* pass x.filled\(value\)"):
            mod.two((1, 2), PAIR(3, 4), masked)
        mod.two((1, 2), PAIR(3, 4), plain)
        mod.two((1, 2), PAIR(3, 4), masked.data)
    assert plain.tolist() == masked.data.tolist() == [1, 2, 3, 4]
