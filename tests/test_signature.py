"""Types come from the compiler's own words, names from the text, sizes from the cubin, and the three must agree."""

import re
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.nvrtc import Answer, ask_nvrtc

import jitload
from jitload.elf.cubin import read_cubin
from jitload.errors import LaunchSpecError, SignatureError
from jitload.model import Kernel, Parameter
from jitload.signature.declared import parse_signature
from jitload.signature.exports import choose_export_names
from jitload.signature.kernels import make_typed_kernel, packed_parameters
from jitload.signature.probe import PROBE_HEADER, kernel_expression, probe_expression
from jitload.signature.types import describe_type


def untyped(*sizes: int, name: str = "k") -> Kernel:
    parameters = packed_parameters(sizes, [min(size & -size, 8) for size in sizes])
    return Kernel(name, "k", parameters, registers=16, shared_bytes=0, local_bytes=0, max_threads=1024)


def ask(source: str, expressions: Sequence[str]) -> Answer:
    names = [text for kernel in expressions for text in (kernel, probe_expression(kernel))]
    options = ["-arch=sm_90", f"--pre-include={PROBE_HEADER[0]}", "--device-int128"]
    return ask_nvrtc(source, options, names, dict([PROBE_HEADER]))


def test_types_are_the_compilers_and_names_the_texts():
    source = """
    enum E { A }; enum class F : unsigned char { B }; enum H : long long { C }; enum G : bool { D };
    struct S { int a[3]; }; struct Empty {};
    struct __align__(2) __half { unsigned short bits; };
    typedef const float* __restrict__ input; using count_t = unsigned; typedef float row[4];
    extern "C" __global__ void k(input x, row y, count_t n, const E e, F f, H h, G g, S s, Empty,
                                 __half a, const int in, float* const lambda, const float4* v, void* p, float** pp,
                                 S* sp, void (*callback)(int), float& r, char c) {}
    """
    (kernel,) = jitload.compile_cubin(source, arch="sm_90").kernels
    assert str(kernel) == (
        "k(const float* x, float* y, unsigned int n, E e, F f, H h, G g, S s, Empty arg8, __half a, int in_, "
        "float* lambda_, const float4* v, void* p, float** pp, S* sp, void (*)(int) callback, float& r, char c)"
    )
    facts = [f"{p.kind} {p.size} {p.dtype} {p.alignment}" for p in kernel.parameters]
    assert ", ".join(facts) == (
        "pointer 8 float32 4, pointer 8 float32 4, uint 4 None 1, int 4 None 1, uint 1 None 1, int 8 None 1, "
        "bool 1 None 1, struct 12 None 1, struct 1 None 1, float 2 float16 1, int 4 None 1, pointer 8 float32 4, "
        "pointer 8 float32 16, pointer 8 None 1, pointer 8 int64 8, pointer 8 None 1, pointer 8 None 1, "
        "pointer 8 float32 4, int 1 None 1"
    )
    assert [p.offset for p in kernel.parameters][:8] == [0, 8, 16, 20, 24, 32, 40, 44]


def test_a_pointer_to_an_enum_takes_its_integers():
    source = """
    enum E { A }; enum class U : unsigned char { B }; enum class S : short {}; enum class B : bool {}; struct Big;
    namespace ns { enum class Long : long long { X }; enum Opaque : unsigned; }
    template <class T> struct Same { typedef T type; };
    template <class T> __global__ void each(typename Same<T>::type* a, const T* b) {}
    extern "C" __global__ void k(E* a, const U* b, volatile S* c, const volatile ns::Long* __restrict__ d, E* const e,
                                 ns::Opaque* f, B* g, E h[], E& i, E** j, E (*l)[3], int (*m)(E), Big* n) {}
    """
    kernels = jitload.compile_cubin(source, kernels="each<U>", arch="sm_90").kernels
    k, each = sorted(kernels, key=lambda kernel: -len(kernel.parameters))
    dtypes = "int32 uint8 int16 int64 int32 uint32 bool int32 int32 int64 None None None"
    assert [str(p.dtype) for p in k.parameters] == dtypes.split()
    assert [p.type for p in k.parameters][:4] == ["E*", "const U*", "volatile S*", "const volatile ns::Long*"]
    assert [p.dtype for p in each.parameters] == ["uint8", "uint8"]


def test_the_probe_leaves_nothing_behind():
    source = 'struct [[deprecated("old")]] D {};\nextern "C" __global__ void k(int* x, D* d) { *x = 1; }'
    with_probe, without = ask(source, ["k"]), ask_nvrtc(source, ["-arch=sm_90"], ["k"])
    assert [kernel.symbol for kernel in read_cubin(with_probe.cubin).kernels] == ["k"]
    assert with_probe.log == without.log  # the deprecation is reported once, at the user's own line
    assert with_probe.log.count("deprecated") >= 1
    assert "k.cu(2): warning" in ask('\nextern "C" __global__ void k(int* x) { int unused; }', ["k"]).log


def test_macros_do_not_reach_the_probe():
    macros = {"T": "int", "R": "float", "A": "3", "F": "", "G": "}", "type": "3", "t": "-", "enum_type": "("}
    source = 'extern "C" __global__ void k(int* x) {}'
    defined = "".join(f"#define {name} {text}\n" for name, text in macros.items())
    # NVRTC's own header cannot bear `T` and `type` on the command line.
    options = [f"-D{name}={text}" for name, text in macros.items() if name not in ("T", "type")]
    for text, flags in ((defined + source, []), (source, options)):
        (kernel,) = jitload.compile_cubin(text, arch="sm_90", extra_cuda_cflags=flags).kernels
        assert kernel.parameters[0].type == "int*"


BROKEN_KERNELS = {
    "": (0, "it is empty"),
    'a"': (1, "'\"' is not allowed in a kernel's name"),
    "a\n#pragma x": (1, "'\\n' is not allowed in a kernel's name"),
    "a/**/": (1, "'/' is not allowed in a kernel's name"),
    "a<'ab'>": (2, "\"'\" is not allowed in a kernel's name"),
    "a), (b": (1, "only parameter types in parentheses may follow the kernel's name"),
    "a<b": (1, "nothing closes this '<'"),
    "a(int), b": (6, "only parameter types in parentheses may follow the kernel's name"),
    "__jitload_probe<int>": (0, "names that begin with '__jitload_' are reserved"),
}


@pytest.mark.parametrize("kernel", BROKEN_KERNELS)
def test_broken_kernel_names_are_refused_at_their_column(kernel):
    column, problem = BROKEN_KERNELS[kernel]
    with pytest.raises(LaunchSpecError) as caught:
        kernel_expression(kernel)
    assert caught.value.problem == f"this is not a kernel: {problem}"
    assert (caught.value.field, caught.value.column) == ("kernel", column)


@given(st.text(alphabet="ab:<>(),*&[] -;\"'{}/\\\n1.", max_size=12))
def test_no_kernel_text_breaks_out(kernel):
    try:
        expression = kernel_expression(kernel)
    except LaunchSpecError:
        return
    assert not set(expression) & set(";\"'{}/\\\n#")
    depth = 0
    for character in expression:
        depth += (character in "([") - (character in ")]")
        assert depth >= 0
    assert depth == 0


def test_sizes_of_vectors_are_the_compilers():
    signed = ("char", "short", "int", "long", "longlong")
    bases = [*signed, *(f"u{base}" for base in signed), "float", "double"]
    vectors = [f"{base}{count}" for base in bases for count in (1, 2, 3, 4)] + ["dim3"]
    facts = [describe_type(vector) for vector in vectors]
    alignments = [describe_type(f"{vector}*").alignment for vector in vectors]
    checks = "".join(
        f'static_assert(sizeof({vector}) == {fact.size} && alignof({vector}) == {alignment}, "{vector}");\n'
        for vector, fact, alignment in zip(vectors, facts, alignments, strict=True)
    )
    assert jitload.compile_cubin(f"{checks}__global__ void k() {{}}", arch="sm_90")


def test_a_written_signature_is_checked_and_joined():
    types, names = zip(*parse_signature("(const float* x, uint8_t* in, half, size_t n)", "k"), strict=True)
    kernel = make_typed_kernel(untyped(8, 8, 2, 8), types, names)
    assert str(kernel) == "k(const float* x, unsigned char* in_, __half arg2, unsigned long n)"
    expected = {"name": "in_", "type": "unsigned char*", "kind": "pointer", "size": 8, "offset": 8, "dtype": "uint8"}
    assert kernel.parameters[1] == Parameter(**expected)
    accepted = "__global__ __launch_bounds__(256) void ns::k<int>(float (*x)[4], long unsigned int n, ns::V<int, 4> v)"
    expected = (("float (*)[4]", "x"), ("long unsigned int", "n"), ("ns::V<int, 4>", "v"))
    assert parse_signature(accepted, "k") == expected
    assert parse_signature("", "k") == parse_signature("()", "k") == parse_signature("(void)", "k") == ()


def test_names_are_different_and_plain():
    kernel = make_typed_kernel(untyped(4, 4, 4, 4), ["int"] * 4, ["arg1", "", "in_", "größe"])
    assert [p.name for p in kernel.parameters] == ["arg1", "arg1_", "in_", "arg3"]


BROKEN_SIGNATURES = {
    "(float* x": "its brackets do not match",
    "(int n; int m)": "';' is not allowed in a parameter list",
    "(flaot* x)": "parameter 1: unknown type 'flaot', did you mean 'float'?",
    "(float x y)": "parameter 1: 'float x y' is not a type and a name",
    "template<class T> void k(T* x)": "parameter 1: 'template<class T> void k (T* x)' is not a type and a name",
    "(x, n)": "parameter 1: 'x' has no type, or is a type without a name",
    "(float* x, unt8_t n)": "parameter 2: unknown type 'unt8_t', did you mean 'uint8_t'?",
}


@pytest.mark.parametrize("text", BROKEN_SIGNATURES)
def test_broken_signatures_are_refused(text):
    with pytest.raises(SignatureError) as caught:
        parse_signature(text, "k")
    first, second, _hint = caught.value.message().split("\n")
    assert first == f"signature of kernel 'k': {BROKEN_SIGNATURES[text]}"
    assert second == f"    {text}"


def test_a_type_of_the_users_own_is_taken_at_its_word():
    assert parse_signature("(struct flaot* x, Matrix m)", "k") == (("struct flaot*", "x"), ("Matrix", "m"))
    kernel = make_typed_kernel(untyped(8, 64), ["struct flaot*", "Matrix"], ["x", "m"])
    assert [(p.kind, p.dtype, p.size) for p in kernel.parameters] == [("pointer", None, 8), ("struct", None, 64)]


# -------------------------------------------------------------------------------------------- candidates and exports


def test_overloads_have_the_names_of_their_own_declarations():
    source = """
    __global__ void k(int* a) {} __global__ void k(float* b) {} namespace n { __global__ void k(float* c) {} }
    template <class T> __global__ void k(T* d) {} template <> __global__ void k<int>(int* e) {}
    template __global__ void k<double>(double*);"""
    kernels = map(str, jitload.compile_cubin(source, arch="sm_90").kernels)
    assert {*kernels} == {"k(int* a)", "k(float* b)", "n::k(float* c)", "k<double>(double* d)", "k<int>(int* e)"}


def kernel_named(name: str, *types: str) -> Kernel:
    return make_typed_kernel(untyped(*(describe_type(type_).size or 1 for type_ in types), name=name), types)


EXPORTS = [
    (["k"], ["k"]),
    (["ns::k<float, 4>"], ["k"]),
    (["a::k", "b::k", "l"], ["a__k", "b__k", "l"]),
    (["k<float, 4>", "k<const int*, -1>"], ["k__float_4", "k__const_int_ptr_minus_1"]),
    (["k<f<1>>", "k<f<2>>", "k<(char)97>"], ["k__f_1", "k__f_2", "k__char_97"]),
    (["k<A*>", "k<A&>"], ["k__A_ptr", "k__A_ref"]),
]


@pytest.mark.parametrize(("names", "exports"), EXPORTS)
def test_export_names(names, exports):
    kernels = [kernel_named(name) for name in names]
    assert list(choose_export_names(kernels)) == exports
    assert list(choose_export_names(kernels).values()) == kernels


def test_export_names_of_overloads():
    kernels = [kernel_named("k", "float*", "int"), kernel_named("k", "const float*"), kernel_named("k")]
    assert list(choose_export_names(kernels)) == ["k__float_ptr__int", "k__const_float_ptr", "k__void"]


@given(st.lists(st.text(alphabet="ab_:<>*, 1ö$", min_size=1, max_size=8), max_size=8))
def test_export_names_are_identifiers_and_different(names):
    kernels = [kernel_named(name) for name in names]
    exports = choose_export_names(kernels)
    assert [kernel.name for kernel in exports.values()] == names
    assert all(name.isidentifier() and name.isascii() for name in exports)


def test_signatures_as_declarations_are_written():
    expected = (("const float*", "x"), ("int", "n"))
    for text in (
        "__global__ void __launch_bounds__(256, 2) k(const float* x, int n);",
        "__launch_bounds__(64) __global__ void k(const float* x, int n) ;",
        'extern "C" void __global__ k(const float* x, int n)',
    ):
        assert parse_signature(text, "k") == expected
    with pytest.raises(SignatureError, match="two parameters are named 'x'"):
        parse_signature("void k(float* x, int x)", "k")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("void other(float* x)", "it declares 'other'"),
        ("void ns::other<float>(float* x)", "it declares 'ns::other'"),
        ("void k(const float& x)", "'const float& x' is a reference, which a launch cannot pass"),
        ("(float* x, int&& n)", "'int&& n' is a reference"),
    ],
)
def test_a_signature_of_another_function_is_refused(text, problem):
    with pytest.raises(SignatureError, match=re.escape(problem)):
        parse_signature(text, "ns::k<float>")
    for accepted in ("void k(float* x)", "void ns::k<float>(float* x)", "void scale(float* x)", "(float* x)"):
        assert parse_signature(accepted, "ns::k<float>", ("scale",)) == (("float*", "x"),)
