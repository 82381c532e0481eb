"""Mangled names: what is read from them, and the error for names that the demangler refuses."""

import pytest
from builds import build, kernel, load, message

import jitload
from jitload import Launch
from jitload.errors import SignatureError
from jitload.signature.demangle import demangle


def test_demangling():
    assert demangle("_Z5scalePfi") == "scale(float*, int)"
    assert demangle("_ZN36_GLOBAL__N__00000000_4_k_cu_1f8c4d092anEPNS_2ASE") == "an(AS*)"
    assert demangle("_ZN29_INTERNAL_00000000_4_k_cu_big31_GLOBAL__N__00000000_4_k_cu_big4anonE") == "anon"
    assert demangle("scale") is None
    assert demangle("_Z@@") is None


LONG = f"tuple<{', '.join(f'C<{number}>' for number in range(300))}>"
TUPLE = """
template <int N> struct C {};
template <class... T> struct tuple {};
namespace ns { template <class T> __global__ void k(T* x, int n) {} }
"""
ALIAS = f"{TUPLE}using Long = {LONG};\n"


def check_asks(error_text: str, name: str, sizes: str) -> None:
    """Check that a message names the kernel, its symbol's length and its sizes, and asks for a signature."""
    length = error_text.partition("its symbol of ")[2].partition(" ")[0]
    assert int(length.replace(",", "")) > 1024
    assert error_text == (
        f"kernel {name!r}: the types of its parameters are unknown: neither the compiler nor its symbol of {length} "
        "characters, which is too long to be read, tells them\n"
        f"    The parameters in the cubin have {sizes} bytes.\n"
        f'    Declare them: Launch(kernel="{name}", signature="(const float* x, int n)").'
    )


def test_a_kernel_with_a_long_symbol_asks_for_a_signature(nvrtc_runs):
    check_asks(message(SignatureError, ALIAS, functions={"f": Launch(kernel="ns::k<Long>")}), "ns::k<Long>", "8, 4")
    assert len(nvrtc_runs) == 1
    signed = {"f": Launch(kernel="ns::k<Long>", signature="(struct Long* x, int n)")}
    assert repr(load(ALIAS, functions=signed).f) == "<jitload function f(Long* x, int n)>"
    wrong = {"f": Launch(kernel="ns::k<Long>", signature="(struct Long* x, double n)")}
    with pytest.raises(SignatureError, match="'double' has 8 bytes, but the cubin's parameter has 4"):
        build(ALIAS, functions=wrong)


def test_a_long_symbol_on_the_cpu_takes_a_signature():
    with pytest.raises(SignatureError) as caught:
        load(ALIAS, arch="cpu", functions={"f": Launch(kernel="ns::k<Long>")})
    check_asks(caught.value.message(), "ns::k<Long>", "8, 4")
    signed = {"f": Launch(kernel="ns::k<Long>", signature="(void* x, int n)")}
    assert repr(load(ALIAS, arch="cpu", functions=signed).f) == "<jitload function f(void* x, int n)>"


def test_an_instance_that_no_launch_names_asks_for_a_signature(nvrtc_runs):
    text = f"{TUPLE}template __global__ void ns::k<{LONG}>({LONG}*, int);"
    asked = message(SignatureError, text)
    name = asked.split("'")[1]
    assert (name[:20], len(name)) == ("_ZN2ns1kI5tupleIJ1CI", 201)
    check_asks(asked, name, "8, 4")
    assert len(nvrtc_runs) == 1
    assert list(load(kernel("other") + text, functions="other")) == ["other"]
    signed = {"f": Launch(kernel=f"ns::k<{LONG}>", signature="(void* x, int n)")}
    assert repr(load(text, functions=signed).f) == "<jitload function f(void* x, int n)>"


OLD = ["-std=c++03"]  # knows no decltype, so nothing tells the types of an extern "C" kernel


def test_a_kernel_that_nothing_types_takes_the_signature_of_its_launch():
    text = 'extern "C" __global__ void k(float* x, int n) {}'
    with pytest.raises(jitload.errors.SignatureError, match=r'Launch\(kernel="k", signature='):
        build(text, extra_cuda_cflags=OLD)
    module = load(text, extra_cuda_cflags=OLD, functions={"k": Launch(signature="(float* x, int n)")})
    assert repr(module.k) == "<jitload function k(float* x, int n)>"
    renamed = {"f": Launch(kernel="k", signature="double* y, unsigned m", args={"m": "y.numel()"})}
    assert repr(load(text, extra_cuda_cflags=OLD, functions=renamed).f) == "<jitload function f(double* y)>"
    short = {"k": Launch(signature="float* x")}
    assert message(SignatureError, text, extra_cuda_cflags=OLD, functions=short).startswith(
        "kernel 'k': 1 parameter in its signature, but 2 in the cubin\n    void k(float* x)\n"
    )


def test_one_kernel_has_one_signature():
    two = {"a": Launch(kernel="k", signature="float* x"), "b": Launch(kernel="k", signature="int* x")}
    with pytest.raises(jitload.errors.SignatureError, match="kernel 'k' has two signatures"):
        build(kernel("k"), functions=two)
