"""Names too long for libstdc++'s demangler are read by jitload's own, which agrees with it on all shorter ones."""

from __future__ import annotations

import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from builds import ARCH, build, kernel, load

import jitload
from jitload import Launch
from jitload.cuda.interruptible import run_interruptible
from jitload.device.demangle import demangle
from jitload.device.kernels import DeviceSource, compile_kernels
from jitload.device.mangled import read_mangled
from jitload.model import CompiledSource
from jitload.settings import read_settings
from jitload.toolchain.cuda import find_cuda_toolchain

# Each form that a compiler writes; libstdc++ knows what they say.
SHORT = """
_Z5scalePfi _Z1kv _Z1kz _ZN2ns1kEPKfPVjPKPKc _Z1kPFvPfiEPFPFivEdE _Z1kRA4_iPA3_A5_KfPKA2_d _Z1kM1AiMS_KFviEMS_FivE
_Z1kDnDiDsDuDhnoxylmwahstbge _ZN1AC1ERKS_ _ZN1AD2Ev _ZNK1A1fEv _ZNKR1A1fEv _Z5scaleIfEvPT_i
_Z5scaleIfLi4EEvPT_NS0_4typeE _ZN2ns5scaleIfN2ns1SEEEvPT_T0_S3_S4_ _Z1kIJfiEEvDpT_ _Z1kIJfiEEvDpPT_i _Z1kIJEEvDpT_
_Z1kI1WIS0_IS0_IfEEEEvT_ _Z1kILj4ELl5ELm6ELx7ELy8ELb1ELb0ELc97ELi9ELin3EEvv _Z1kIL5Major1EEvv _Z1kIXadL_Z3funfEEEvv
_Z1kIXadL_Z3varEEEvv _Z1kILf3f800000EEvv _Z1kI2FnIFifPdEE2FnIDoFvvEE2FnIM1AFviEEEvv
_Z1kIN4cuda3std3__45tupleIJifEEEEvT_ _Z1kIXplLi1ELi2EEEvv _Z1kISt6vectorIiSaIiEEEvT_RKSs _ZNSt6vectorIiE1fERKS0_
_ZSt4swapIiEvRT_S1_ _Z1kIZ1fvE1SEvT_ _Z1kIZ1fvE1S_0EvT_ _Z1kIZ1fvEUliE_EvT_ _Z1kIZ1fvEUliE0_EvT_
_ZN12_GLOBAL__N_11kEP1S _Z1kB5cxx11v _Z1kIN1A1BIiE1CEEvT_NS3_1DE _Z1kIiEvN1AIT_E4typeE _Z1kIXsr1AIiE5valueEEvv
_Z1kIiEDTcl1fT_EEv _Z1kI1AE1BIT_EPS2_ _Z1kIRiEvOT_ _Z1kIKiEvPKT_ _Z1krPi _Z1ku3foo _Z1kDv4_f _ZL3var _ZN2ns3varE
_Z3ünli _Z1kIiEvPFT_S0_ES1_ _Z1kI1SIXstiEEEvv _Z1kIiET_v _Z1kIiEPT_v _Z1kIiEPFvT_Ev _ZN1AcviEv _ZN1A1BplERKS0_
_ZNSaIcE1fEv _ZN1A3fooIiE3barIfEEvT_ _Z1kI1ASt4pairIS0_S0_EEvT_T0_
"""
UNREAD = {"_Z1kIiEDTcl1fT_EEv"}  # a call in a type; nothing that a kernel takes
NO_NAMES = "_Z _Z1 _Z9k _ZSt _ZN _ZN1kE3 _Z1kP _Z1kIiEvT0_ _Z1kIT_EvS0_ _Z1kS9_ scale _Z@@"


@pytest.mark.parametrize("symbol", SHORT.split())
def test_it_reads_what_libstdcxx_reads(symbol):
    told = read_mangled(symbol)
    if symbol in UNREAD:
        assert told is None
    else:
        assert told
        assert demangle(symbol) == told.replace("(anonymous namespace)::", "")


@pytest.mark.parametrize("symbol", NO_NAMES.split())
def test_what_is_no_name_is_not_read(symbol):
    assert read_mangled(symbol) is None


def test_a_text_that_nobody_would_read_is_cut():
    digits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    twice = "".join(f"S_IS{digits[at]}_S{digits[at]}_E" for at in range(34))  # each as long as two of those before
    told = read_mangled(f"_Z1k1pIiiE{twice}PS0_Pf")
    assert told.startswith("k(p<int, int>, p<p<int, int>, p<int, int> >, p<p<p<int, int>, ")
    assert told.endswith(">, p<int, int>*, float*)")
    assert "p<...>" in told
    assert len(told) < 1 << 20


def test_deep_names_leave_the_process_as_it_was():
    before = sys.getrecursionlimit(), threading.stack_size()
    depth = 1500
    told = read_mangled(f"_Z1kI1WI{'S0_I' * depth}f{'E' * depth}EEvT_Pf")
    assert told.endswith(", float*)")
    assert told.count("W<") == 2 * (depth + 1)
    assert (sys.getrecursionlimit(), threading.stack_size()) == before
    assert read_mangled(f"_Z1k{'P' * 100_000}f") is None  # deeper than there is room for


def test_deep_names_and_compiles_leave_the_size_of_stacks_together(monkeypatch):
    """Both set it for a thread of their own, and it is the process's."""

    def too_deep(symbol: str) -> str:
        raise RecursionError(symbol)

    monkeypatch.setattr("jitload.device.mangled._read", too_deep)
    before = threading.stack_size()
    with ThreadPoolExecutor(2) as pool:
        names = pool.map(read_mangled, ["_Z1kv"] * 200)
        for _ in range(200):
            run_interruptible(lambda _: None)
        assert set(names) == {None}
    assert threading.stack_size() == before


# ---- as NVRTC writes them --------------------------------------------------------------------------------------


def compile_text(text: str, *kernels: str) -> CompiledSource:
    source = DeviceSource(name="long", pieces=(("long.cu", text),), kernels=kernels)
    return compile_kernels(source, ARCH, find_cuda_toolchain(read_settings()))


LAYOUTS = """
#include <cuda_fp16.h>
enum class Major : unsigned char { K, MN };
enum Plain { P0, P1 };
namespace cute {
    template <int N> struct C {};
    template <class... T> struct tuple {};
    template <class S, class L> struct Layout {};
    template <auto V> struct K {};
    template <class F> struct Fn {};
    template <class T> struct Holder { struct Params { T* p; int n; }; typedef int word; };
}
namespace { struct Hidden { int a; }; }
using namespace cute;
__device__ int fun(float) { return 1; }
using Small = tuple<K<&fun>, K<Major::MN>, K<-4l>, K<'a'>, Fn<int (*)[3][4]>, Hidden, __half, Fn<void(int) noexcept>>;
using Long = tuple<Small, MANY>;
template <class T, class... R>
__global__ void kern(typename Holder<T>::Params params, T* x, const __half* y, float4* z, Major m, const R*... rest) {}
template <class T> __global__ void other(Holder<T> h, typename Holder<T>::word n, Plain plain, T (*g)(int, T*)) {}
"""


def facts(compiled: CompiledSource) -> list[list[tuple[str, str, str | None, int, int]]]:
    return [[(p.name, p.kind, p.dtype, p.size, p.alignment) for p in k.parameters] for k in compiled.cubin.kernels]


def test_a_long_name_tells_the_types_that_a_short_one_tells(nvrtc_runs):
    many = ", ".join(f"Layout<C<{n}>, tuple<K<{n}u>, Fn<float[{n + 1}]>, Small>>" for n in range(60))
    wanted = ("kern<Long, float, __half>", "other<Long>")
    short = compile_text(LAYOUTS.replace("MANY", "int"), *wanted)
    long = compile_text(LAYOUTS.replace("MANY", many), *wanted)
    assert len(nvrtc_runs) == 2
    assert facts(long) == facts(short)
    kern, other = long.cubin.kernels
    assert min(len(kern.symbol), len(other.symbol)) > 2000
    assert [p.dtype for p in kern.parameters] == [None, None, "float16", "float32", None, "float32", "float16"]
    assert [p.name for p in kern.parameters] == ["params", "x", "y", "z", "m", "rest0", "rest1"]
    assert [p.kind for p in other.parameters] == ["struct", "int", "int", "pointer"]
    assert "cute::Layout<cute::C<59>, cute::tuple<cute::K<59u>, cute::Fn<float [60]>, " in kern.parameters[1].type


def test_templates_within_templates_hundreds_of_times():
    inner = "W<" * 700 + "float" + ">" * 700
    text = f"template <class T> struct W {{}};\ntemplate <class T> __global__ void k(T* x, {inner}* y, float* z) {{}}"
    (k,) = compile_text(text, f"k<{inner}>").cubin.kernels
    assert len(k.symbol) > 2000
    assert k.parameters[0].type == k.parameters[1].type
    assert (k.parameters[0].type.count("W<"), k.parameters[2].type) == (700, "float*")


def test_a_thousand_parameters():
    types = [("float*", "const unsigned short*", "int", "double", "Color")[n % 5] for n in range(950)]
    listed = ", ".join(f"{type_} p{n}" for n, type_ in enumerate(types))
    text = f"enum Color {{ RED }};\n__global__ void many({listed}) {{}}\n"
    (many,) = compile_text(text).cubin.kernels
    assert [p.type for p in many.parameters] == types
    assert [p.name for p in many.parameters] == [f"p{n}" for n in range(950)]
    assert {p.dtype or p.kind for p in many.parameters} == {"float32", "uint16", "int", "float64"}
    assert list(load(f'extern "C" {text.splitlines()[1]}'.replace("Color", "int"))) == ["many"]


def test_long_kernels_that_share_a_name_are_exported_under_names_one_can_type():
    inner = "cute::tuple<" + ", ".join(f"cute::C<{n}>" for n in range(300)) + ">"
    text = LAYOUTS.replace("MANY", "int") + "template <class T> __global__ void k(T* x) {}\n"
    text += f"template __global__ void k<{inner}>({inner}*);\ntemplate __global__ void k<int>(int*);\n"
    names = sorted(load(text))
    assert names[1] == "k__int"
    assert names[0].startswith("k__cute_tuple_cute_C_0_cute_C_1_")
    assert len(names[0]) < 128
    assert names == sorted(load(text + "//"))


# ---- signatures by hand ----------------------------------------------------------------------------------------

OLD = ["-std=c++03"]  # knows no decltype, so nothing tells the types of an extern "C" kernel


def test_a_kernel_that_nothing_types_takes_the_signature_of_its_launch():
    text = 'extern "C" __global__ void k(float* x, int n) {}'
    with pytest.raises(jitload.errors.SignatureError, match=r'Launch\(kernel="k", signature='):
        build(text, extra_cuda_cflags=OLD)
    module = load(text, extra_cuda_cflags=OLD, functions={"k": Launch(signature="(float* x, int n)")})
    assert repr(module.k) == "<jitload function k(float* x, int n)>"
    renamed = {"f": Launch(kernel="k", signature="double* y, unsigned m", args={"m": "y.numel()"})}
    assert repr(load(text, extra_cuda_cflags=OLD, functions=renamed).f) == "<jitload function f(double* y)>"
    with pytest.raises(jitload.errors.SignatureError, match="kernel 'k': 1 parameter in its signature, 2 in the cubin"):
        build(text, extra_cuda_cflags=OLD, functions={"k": Launch(signature="float* x")})


def test_one_kernel_has_one_signature():
    two = {"a": Launch(kernel="k", signature="float* x"), "b": Launch(kernel="k", signature="int* x")}
    with pytest.raises(jitload.errors.SignatureError, match="kernel 'k' has two signatures"):
        build(kernel("k"), functions=two)
