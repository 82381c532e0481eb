"""Device code, host code and what needs nvcc are told from each other, in texts and in the headers they include."""

import pytest

from jitload.cpptext.source_kind import SourceKind, classify
from jitload.request.arguments import Call, Options
from jitload.request.request import make_request
from jitload.request.sources import inline_sources

KINDS: dict[str, tuple[bool, SourceKind]] = {
    "__global__ void k() {}": (False, "device"),
    "__device__ float table[3];": (False, "device"),
    "#define K(n) __global__ void n() {}\nK(a)": (False, "device"),
    "#define RUN(k, ...) k<<<1, 2>>>(__VA_ARGS__)\n__global__ void k() {}": (False, "device"),
    "#define RUN(k) k<<<1, 2>>>()\n#define ALL RUN(k)\n__global__ void k() {}": (False, "device"),
    "#define RUN(k) k<<<1, 2>>>()\n#define ALL RUN(k)\n__global__ void k() {} void f() { ALL; }": (False, "mixed"),
    "#define RUN(k) k<<<1, 2>>>()\n__global__ void k() {} void f() { RUN(k); }": (False, "mixed"),
    'const char* s = "TVM_FFI_X <<<"; __global__ void k() {}': (False, "device"),
    "__global__ void k() {} void f() { k<<<1, 2>>>(); }": (False, "mixed"),
    "TVM_FFI_EMBED_CUBIN(name); void f() {}": (False, "host"),
    "__global__ void k(); TVM_FFI_EMBED_CUBIN(name);": (False, "host"),
    "#include <cub/block/block_reduce.cuh>\nvoid f(tvm::ffi::TensorView x);": (False, "mixed"),
    "__global__ void k();": (True, "host"),
    # launched with cudaLaunchKernel: the host's compiler would make a plain function of the kernel, and say nothing
    "__global__ void k() {} TVM_FFI_DLL_EXPORT_TYPED_FUNC(f, g);": (False, "mixed"),
    "__global__ void k() {} void f(tvm::ffi::TensorView x);": (False, "mixed"),
    "#include <tvm/ffi/function.h>\n__global__ void k() {} void f() {}": (False, "mixed"),
    "#define __global__\nTVM_FFI_DLL_EXPORT_TYPED_FUNC(f, g);": (False, "host"),
    "int add(int a, int b) { return a + b; }": (False, "host"),
    "std::ostream& operator<<<char>(A<char>); __global__ void k() {}": (False, "device"),
}


@pytest.mark.parametrize("text", KINDS)
def test_a_text_shows_its_kind(text):
    has_embed_cubin, kind = KINDS[text]
    assert classify(["", text], has_embed_cubin=has_embed_cubin) == kind


EXPORT = "TVM_FFI_DLL_EXPORT_TYPED_FUNC(scale, (Scale<2>::run));"
KERNELS = "template <int N> __global__ void scale_kernel(float* x) { x[threadIdx.x] *= N; }\n"
RUN = "template <int N> struct Scale { static void run(tvm::ffi::TensorView x) { start(scale_kernel<N>); } };\n"
START = "template <class K> void start(K kernel) { kernel<<<1, 32>>>(nullptr); }\n"


def is_mixed(text, *, dirs=(), flags=(), kind=None, cubins=None):
    """Tell whether a text in `cuda_sources` is taken for kernels and what launches them."""
    sources = inline_sources("m", [text, EXPORT], embed_cubin=cubins)
    options = Options(include_dirs=tuple(dirs), cuda=tuple(flags))
    call = Call(name="m", sources=sources, makes="library", options=options, arch="sm_90a", kind=kind)
    request = make_request(call)
    return request.host is not None and request.host.is_mixed


@pytest.fixture
def library(tmp_path):
    """Headers that include each other as libraries of kernels do: from beside, and from a directory that is given."""
    (tmp_path / "src").mkdir()
    (tmp_path / "include" / "lib").mkdir(parents=True)
    (tmp_path / "src" / "scale.cuh").write_text('#include "kernels.cuh"\n#include <lib/start.h>\n' + RUN)
    (tmp_path / "src" / "kernels.cuh").write_text(KERNELS)
    (tmp_path / "include" / "lib" / "start.h").write_text(START)
    return tmp_path


def test_kernels_in_a_header_take_nvcc(library):
    include = f'#include "{library}/src/scale.cuh"'
    assert is_mixed(include, dirs=[library / "include"])
    assert is_mixed('#include "scale.cuh"', dirs=[library / "src"])
    assert is_mixed('#include "scale.cuh"', flags=[f"-I{library}/src"])
    assert not is_mixed('#include "scale.cuh"')  # not found: the compiler says so
    assert not is_mixed(include, dirs=[library / "include"], kind="host")
    assert is_mixed("#include <lib/start.h>", dirs=[library / "include"])  # launches alone
    assert not is_mixed(f'#include "{library}/src/kernels.cuh"', cubins={"k": b"\x7fELF"})  # a wrapper around cubins
    (library / "cuda_runtime.h").write_text(KERNELS)
    assert not is_mixed("#include <cuda_runtime.h>", dirs=[library])  # CUDA's own


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("__device__ inline int lane() { return threadIdx.x % 32; }\n", True),
        ("#include <cub/cub.cuh>\n", True),
        ("#define __device__\n__device__ inline int f() { return 1; }\n", False),
        ("#include <cuda_fp16.h>\n__device__ inline int f() { return 1; }\n", False),
    ],
)
def test_a_header_that_the_hosts_compiler_cannot_read_takes_nvcc(tmp_path, text, expected):
    (tmp_path / "device.cuh").write_text(text)
    assert is_mixed(f'#include "{tmp_path}/device.cuh"') == expected


@pytest.mark.parametrize(
    "text",
    [
        "// kernel<<<1, 1>>>()\n/* __global__ void k(); */\n",
        "#define RUN(k) k<<<1, 1>>>()\n",
        "#ifdef __CUDACC__\n__global__ void k() {}\n#endif\n",
        'const char* text = "__global__";\n',
        "struct S {}; S& operator<<<>(S& s, int);\n",
    ],
)
def test_a_header_that_the_hosts_compiler_reads_stays_the_hosts(tmp_path, text):
    (tmp_path / "plain.h").write_text(text + "int f();\n")
    assert not is_mixed(f'#include "{tmp_path}/plain.h"')


def test_headers_that_include_each_other_end(tmp_path):
    (tmp_path / "a.h").write_text('#include "b.h"\n')
    (tmp_path / "b.h").write_text('#include "a.h"\n#include "missing.h"\n')
    assert not is_mixed('#include "a.h"', dirs=[tmp_path])
