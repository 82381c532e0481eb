"""Kernels and their parameters are found by tokens, whatever comments, strings and macros hold."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jitload.candidate import Candidate
from jitload.cpptext.declarations import find_candidates
from jitload.cpptext.structures import find_declarations


def only(text: str) -> Candidate:
    (candidate,) = find_candidates((text,))
    return candidate


NAMES = {
    # what stands around the name
    "__global__ void k() {}": ["k"],
    "__global__ __launch_bounds__(N * (2 + 1)) void k() {}": ["k"],
    "__global__ void __launch_bounds__(256) __cluster_dims__(2, 1, 1) __maxnreg__(32) k() {}": ["k"],
    '__global__ __attribute__((used, section("a(b"))) void k() {}': ["k"],
    "__global__ MACRO void WITH(1, (2)) k() {}": ["k"],
    "template <class T> requires (sizeof(T) == 4) __global__ void k(T* x) {}": ["k"],
    "__global__ /* a */ void // b\n k /* c */ (/* d */) {}": ["k"],
    "__glo\\\nbal__ void k\\\r\n1() {}": ["k1"],
    # scopes
    "namespace a { namespace b::c { __global__ void k() {} } __global__ void l() {} }": ["a::b::c::k", "a::l"],
    'namespace a { extern "C" { __global__ void k() {} } }': ["a::k"],
    "struct S { int x; void f() { if (x) { } } }; __global__ void k() {}": ["k"],
    # templates
    "template <int N = (1 > 2), class U = A<B<int>>> __global__ void k() {}": ["k"],
    "template <class T> __global__ void k(T*); template __global__ void k<float>(float*);": ["k"],
    "extern template __global__ void k<float>(float*);": [],
    "template <> __global__ void k<float, 4>(float* x) {}": ["k<float, 4>"],
    # what is no kernel
    'const char* s = "__global__ void k() {}";': [],
    'const char* s = "\\"; __global__ void k() {}";': [],
    'auto s = R"x(__global__ void k() {})" )x"; __global__ void l() {}': ["l"],
    "int n = 1'000; __global__ void k() {} char c = 'x';": ["k"],
    "#define K __global__ void k() {}\n__global__ void l() {}": ["l"],
    "#define K(n) \\\n  __global__ void n() {} /* and\n more */ __global__ void n2();\n__global__ void l() {}": ["l"],
    "__global__ void NAME(k)(int* x) {}": [],
    # branches of the preprocessor
    "#if 0\n__global__ void k() {}\n#endif\n__global__ void l() {}": ["k", "l"],
    "#if A\n__global__ void k(int a) {\n#else\n__global__ void k(float a) {\n#endif\n}": ["k", "k"],
    "__global__ void\n#ifdef A\n__cluster_dims__(2)\n#endif\nk(int n) {}": ["k"],
}


@pytest.mark.parametrize("text", NAMES)
def test_kernels_are_found_with_their_scopes(text):
    assert [candidate.name for candidate in find_candidates((text,))] == NAMES[text]
    assert [candidate.name for candidate in find_candidates((text.replace("\n", "\r\n"),))] == NAMES[text]


PARAMETERS = {
    "": [],
    "void": [],
    "float* x": [("float*", "x")],
    "const float *__restrict__ x, float const* y": [("const float*", "x"), ("float const*", "y")],
    "float x[4], float y[], float z[2][3]": [("float*", "x"), ("float*", "y"), ("float (*)[3]", "z")],
    "void (*f)(int, float*), float (*)(float), int (*a)[3], int (&r)[3]": [
        ("void (*)(int, float*)", "f"),
        ("float (*)(float)", ""),
        ("int (*)[3]", "a"),
        ("int (&)[3]", "r"),
    ],
    "int n = f(1, 2), std::pair<int, A<B>> p = {1, 2}, bool b = 1 < 2": [
        ("int", "n"),
        ("std::pair<int, A<B>>", "p"),
        ("bool", "b"),
    ],
    "const __grid_constant__ CUtensorMap map, [[maybe_unused]] int n": [("const CUtensorMap", "map"), ("int", "n")],
    "T* x, Rest... rest": [("T*", "x"), ("Rest...", "rest")],
    "int in, float* lambda, int None, int match": [
        ("int", "in_"),
        ("float*", "lambda_"),
        ("int", "None_"),
        ("int", "match"),
    ],
    "int /* a, b */ n, // c, d\n int m": [("int", "n"), ("int", "m")],
    "float* const x, const float* const* y": [("float* const", "x"), ("const float* const*", "y")],
}


@pytest.mark.parametrize("text", PARAMETERS)
def test_parameters_have_types_and_names(text):
    candidate = only(f"__global__ void k({text}) {{}}")
    assert list(zip(candidate.types, candidate.parameters, strict=True)) == PARAMETERS[text]


def test_forward_declarations_are_merged():
    first = "__global__ void k(float* x, int count);\n"
    assert only(first + "__global__ void k(float*, const int n) {}").parameters == ("x", "n")
    assert only(first + "__global__ void k(float* r, int) {}").parameters == ("r", "count")
    assert only("__global__ void k(int in) {}\n__global__ void k(int other);").parameters == ("in_",)
    assert only("__global__ void k(float x[4]);\n__global__ void k(float* x) {}").line == 2


def test_names_of_a_branch_that_may_not_be_compiled_are_not_taken():
    first, second = (f"__global__ void k(int {a}, int n, int {b}) {{}}" for a, b in (("m", "l"), ("l", "m")))
    assert only(f"#if A\n{first}\n#else\n{second}\n#endif").parameters == ("", "n", "")


def test_overloads_are_apart():
    candidates = find_candidates(("__global__ void k(int* a) {}", "__global__ void k(float* b) {}"))
    assert [(candidate.types, candidate.piece) for candidate in candidates] == [(("int*",), 0), (("float*",), 1)]


WORDS = """( ) { } [ ] < > , ; : * & = ' " # \\ / __global__ void k template namespace R"( // /* :: #if #else #endif"""


@given(st.lists(st.sampled_from([*WORDS.split(), "\n", " "])))
def test_no_text_is_too_broken(words):
    for candidate in find_candidates(("".join(words), " ".join(words))):
        assert len(candidate.parameters) == len(candidate.types)
        assert candidate.line >= 1
    assert not find_declarations((f"__device__ {' '.join(words)};",)).aliases
