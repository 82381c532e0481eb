"""Names of cubins and kernels in C++ are checked before the compiler runs, as far as the text shows them."""

import pytest
from builds import ADD, ARCH, ROOT

import jitload
from jitload.errors import JitLoadError
from jitload.host_cpp.embedding import check_embeds
from jitload.request.request import HostSource, Unit

STUB = (ROOT / "tests" / "data" / "stub_kernels.sm_90.cubin").read_bytes()
MANGLED = (ROOT / "tests" / "data" / "image-13.0-sm_90a.cubin").read_bytes()


def check(text, *, cubins=(("first", STUB), ("other", MANGLED)), flags=(), dirs=(), objects=()):
    unit = Unit(
        file="m.cc", pieces=(("a.cu", "TVM_FFI_EMBED_CUBIN(first); TVM_FFI_EMBED_CUBIN(other);"), ("b.cu", text))
    )
    check_embeds(HostSource(units=(unit,), cubins=cubins, flags=flags, objects=objects), dirs, "")


WRONG = [
    (
        'int a;\nauto k = TVM_FFI_EMBED_CUBIN_GET_KERNEL(first, "ad_one");',
        (
            'b.cu:2: TVM_FFI_EMBED_CUBIN_GET_KERNEL(first, "ad_one"): the cubin has no such kernel; '
            "it has: empty, add_one, mixed, bounded"
        ),
    ),
    (
        'auto k = TVM_FFI_EMBED_CUBIN_GET_KERNEL(other, "second");',
        (
            'b.cu:1: TVM_FFI_EMBED_CUBIN_GET_KERNEL(other, "second"): the cubin has no such kernel; it has: first, '
            "_Z6secondPf (second(float*)), _Z8instanceIfEvPT_ (void instance<float>(float*)), nothing\n"
            '    Ask for "_Z6secondPf", or compile the kernel as extern "C".'
        ),
    ),
    (
        'auto k = TVM_FFI_EMBED_CUBIN_GET_KERNEL(other, "instance");',
        (
            'b.cu:1: TVM_FFI_EMBED_CUBIN_GET_KERNEL(other, "instance"): the cubin has no such kernel; it has: first, '
            "_Z6secondPf (second(float*)), _Z8instanceIfEvPT_ (void instance<float>(float*)), nothing\n"
            '    Ask for "_Z8instanceIfEvPT_", or compile the kernel as extern "C".'
        ),
    ),
    (
        'auto k = TVM_FFI_EMBED_CUBIN_GET_KERNEL(frist, "empty");',
        (
            'b.cu:1: TVM_FFI_EMBED_CUBIN_GET_KERNEL(frist, "empty"): the C++ has no TVM_FFI_EMBED_CUBIN(frist); '
            "it has: first, other"
        ),
    ),
    (
        "auto k = TVM_FFI_EMBED_CUBIN_GET_KERNEL(frist, names[0]);",
        (
            "b.cu:1: TVM_FFI_EMBED_CUBIN_GET_KERNEL(frist, …): the C++ has no TVM_FFI_EMBED_CUBIN(frist); "
            "it has: first, other"
        ),
    ),
]


@pytest.mark.parametrize(("text", "message"), WRONG, ids=[text[-30:] for text, _ in WRONG])
def test_a_message_about_a_missing_name_lists_those_that_exist(text, message, caplog):
    """A missing cubin is an error; a missing kernel is a warning, because it may never be looked up."""
    if "frist" in text:
        with pytest.raises(JitLoadError) as caught:
            check(text)
        assert str(caught.value) == message
    else:
        check(text)
        assert [record.getMessage() for record in caplog.records] == [message]


UNKNOWN = [
    'auto k = TVM_FFI_EMBED_CUBIN_GET_KERNEL(other, "_Z6secondPf");',
    'auto k = TVM_FFI_EMBED_CUBIN_GET_KERNEL(first, "add" "_one");',
    "auto k = TVM_FFI_EMBED_CUBIN_GET_KERNEL(first, name.c_str());",
    '#if 0\nauto k = TVM_FFI_EMBED_CUBIN_GET_KERNEL(first, "none");\n#endif',
    '// TVM_FFI_EMBED_CUBIN_GET_KERNEL(first, "none")',
    '#define K(name) TVM_FFI_EMBED_CUBIN_GET_KERNEL(name, "none")',
    'try { TVM_FFI_EMBED_CUBIN_GET_KERNEL(first, "none"); } catch (...) {}',
    'TVM_FFI_EMBED_CUBIN_FROM_BYTES(own, kBytes); auto k = TVM_FFI_EMBED_CUBIN_GET_KERNEL(own, "any");',
    (
        "#define TWO(a, b) TVM_FFI_EMBED_CUBIN(a); TVM_FFI_EMBED_CUBIN(b)\nTWO(x, y);\n"
        'auto k = TVM_FFI_EMBED_CUBIN_GET_KERNEL(x, "any");'
    ),
]


@pytest.mark.parametrize("text", UNKNOWN)
def test_names_that_the_text_does_not_show_are_left_to_the_compiler(text, caplog):
    check(text)
    assert not caplog.records


def test_a_header_may_declare_a_cubin(tmp_path):
    text = '#include "mine.h"\nauto k = TVM_FFI_EMBED_CUBIN_GET_KERNEL(third, "any");'
    (tmp_path / "mine.h").write_text("TVM_FFI_EMBED_CUBIN(third);")
    check(text, dirs=(tmp_path,))
    check(text, flags=(f"-I{tmp_path}",))
    (tmp_path / "mine.h").write_text("")
    with pytest.raises(JitLoadError, match=r"the C\+\+ has no TVM_FFI_EMBED_CUBIN\(third\)"):
        check(text, dirs=(tmp_path,))


def test_kernels_compiled_with_the_cpp_are_checked_too(caplog):
    cpp = """\
#include <tvm/ffi/extra/cuda/cubin_launcher.h>
TVM_FFI_EMBED_CUBIN(vec);
void run() { static auto kernel = TVM_FFI_EMBED_CUBIN_GET_KERNEL(vec, "twice"); }
"""
    cuda = "__global__ void twice(float* x) {}"
    jitload.build_inline("vec", cuda_sources=cuda, cpp_sources=cpp, functions="run", arch="sm_90")
    (message,) = [record.getMessage() for record in caplog.records]
    location = 'vec.cpp:3: TVM_FFI_EMBED_CUBIN_GET_KERNEL(vec, "twice"): '
    assert message.startswith(f"{location}the cubin has no such kernel; it has: _Z5twicePf")
    assert 'Ask for "_Z5twicePf"' in message


def test_kernels_beside_cubins_need_a_kind():
    words = (
        "module 'm': cuda_sources contains only kernels, but embed_cubin= says that it is C++. To compile the kernels, "
    )
    cpp = "#include <tvm/ffi/extra/cuda/cubin_launcher.h>\nTVM_FFI_EMBED_CUBIN(first);\nint run() { return 1; }\n"
    with pytest.raises(JitLoadError) as alone:
        jitload.build_inline("m", cuda_sources=ADD, embed_cubin={"first": STUB})
    assert str(alone.value) == (
        f"{words}pass kind='device' and leave embed_cubin= out; kind='host' passes them to the C++ compiler."
    )
    with pytest.raises(JitLoadError) as beside:
        jitload.build_inline("m", cuda_sources=ADD, cpp_sources=cpp, embed_cubin={"first": STUB})
    assert str(beside.value).startswith(f"{words}pass kind='device' and launch them with TVM_FFI_EMBED_CUBIN(m); ")
    cpp += "TVM_FFI_EMBED_CUBIN(m);"
    path = jitload.build_inline(
        "m", cuda_sources=ADD, cpp_sources=cpp, embed_cubin={"first": STUB}, functions="run", kind="device", arch=ARCH
    )
    assert jitload.load_module(path).run() == 1
