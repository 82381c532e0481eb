"""Sources with `main()`: their kernels without the host code, and the command that runs them."""

import numpy as np
import pytest
from builds import ARCH
from support.nvcc import needs_nvcc

import jitload
from jitload import Launch, Tune
from jitload.cpptext import host_functions
from jitload.errors import CompileError, LaunchSpecError

SAXPY = r"""
#include <cstdio>
#include <iostream>
#include <thrust/sort.h>
#include <vector>
#define CHECK(call) do { cudaError_t e_ = (call); if (e_ != cudaSuccess) fail(e_, __LINE__); } while (0)
#define HD __host__ __device__
#define BOTH_SIDES(x) (x + OFFSET)
using namespace std;
constexpr int BLOCK = 256;
static const float SCALE = 2.0f, OFFSET = 1.0f;
std::vector<float> storage;
int calls = 0;
template <typename T> struct Pair { T a, b; };
typedef Pair<float> PairF;
enum Mode { ADD, SUBTRACT };
void fail(cudaError_t error, int line);
struct Rows {
  float* data;
  std::size_t count;
  Rows(int n) : data(nullptr), count(n) { CHECK(cudaMalloc(&data, n * sizeof(float))); }
  ~Rows() { calls += 1; }
  std::size_t bytes() const { return storage.size() * count; }
  HD float at(int i) const { return data[i]; }
  struct Inner { int host() { return puts("x"); } int n; } inner;
};
struct Timer { cudaEvent_t start; Timer() { cudaEventCreate(&start); } ~Timer() {} };
HD inline float twice(float x) { return SCALE * x; }
constexpr int square(int x) { return x * x; }
template <typename T> __device__ T sum(Pair<T> p) { return p.a + p.b; }
__constant__ float coefficients[4];
// Compute y = a x + y.
__global__ void saxpy(int n, float a, const float* x, float* y, Mode mode) {
  int i = blockIdx.x * blockDim.x + threadIdx.x, start = square(0);
  if (i < n) y[i] = mode == ADD ? a * x[i] + y[i] + start : BOTH_SIDES(twice(sum(PairF{x[i], -y[i]})));
}
namespace util {
extern "C" __global__ void fill(float* x, float v) { x[threadIdx.x] = v; }
__global__ void copy(const Rows* rows, float* x) { x[threadIdx.x] = rows->at(threadIdx.x) + rows->inner.n; }
static double seconds() { return 0; }
}
#ifdef VERBOSE
void report(int n) { if (n) {
#else
void report(int n) { {
#endif
  std::cout << "reports " << n << std::endl; } }
void fail(cudaError_t error, int line) { fprintf(stderr, "%s\n", cudaGetErrorString(error)); exit(1); }
template <class F> void timed(F f) { Timer timer; f(); }
int main(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) printf("[%s]\n", argv[i]);
  timed([&] { util::fill<<<1, 1>>>(nullptr, 1.0f); });
  return 40 + argc;
}
"""


def test_the_kernels_of_a_program_are_loaded(tmp_path):
    (tmp_path / "saxpy.cu").write_text(SAXPY)
    module = jitload.load("saxpy", sources=[tmp_path / "saxpy.cu"], arch=ARCH)
    assert list(module) == ["saxpy", "fill", "copy"]
    assert module.saxpy.__doc__.startswith("saxpy(int n, float a, const float* x, float* y, ")
    launch = Launch(grid="ceil_div(n, 256)", block=256)
    assert list(jitload.load_inline("s", cuda_sources=SAXPY, functions={"saxpy": launch}, arch=ARCH)) == ["saxpy"]
    assert list(jitload.load_inline("s", cuda_sources=SAXPY, kind="device", arch=ARCH)) == ["saxpy", "fill", "copy"]
    names = [kernel.name for kernel in jitload.compile_cubin(SAXPY, arch=ARCH).kernels]
    assert names == ["saxpy", "util::fill", "util::copy"]


def test_the_kernels_of_a_text_that_launches_them_run_on_the_cpu(tmp_path):
    (tmp_path / "scale.cuh").write_text(
        "namespace n { __global__ void scale(float* x, float factor) { x[threadIdx.x] *= factor; } }\n"
    )
    (tmp_path / "p.cu").write_text(
        '#include "scale.cuh"\n#include <cublas_v2.h>\n'
        "__global__ void add(float* x) { x[threadIdx.x] += 1; }\n"
        "void run(float* x) { add<<<1, 4>>>(x); n::scale<<<1, 4>>>(x, 2); }\n"
        "int main() { float* x; cudaMalloc(&x, 16); run(x); }\n"
    )
    x = np.ones(4, np.float32)
    for functions in (None, ["add", "scale"]):
        module = jitload.load("p", sources=[tmp_path / "p.cu"], functions=functions, arch="cpu")
        assert list(module) == ["add", "scale"]
        assert module.scale.__doc__.startswith("scale(float* x, float factor)")
        module.add[1, 4](x)
        module.scale[1, 4](x, 2)
    assert x.tolist() == [10.0] * 4
    with pytest.raises(jitload.JitLoadError, match=r"needs a GPU: .* name only them in "):
        jitload.load("p", sources=[tmp_path / "p.cu"], functions=["run"], arch=("cpu", ARCH))


def test_host_functions_without_launches_are_left_out(tmp_path):
    (tmp_path / "host.cuh").write_text(
        "#pragma once\n#include <vector>\n#include <iostream>\n"
        'inline int total(const std::vector<int>& v) { std::cout << "total"; return int(v.size()); }\n'
        "__device__ inline float twice(float x) { return 2 * x; }\n"
    )
    text = (
        '#include "host.cuh"\n#define CHECK(x) exit(x)\nstd::string name(int n) { return std::to_string(n); }\n'
        "__global__ void k(float* x) { x[0] = twice(x[0]); }\n"
    )
    module = jitload.load_inline("m", cuda_sources=text, extra_include_paths=[tmp_path], arch=("cpu", ARCH))
    assert list(module) == ["k"]
    x = np.ones(1, np.float32)
    module.k[1, 1](x)
    assert x.tolist() == [2.0]
    missing = "float f(float x) { return x; }\n__global__ void k(float* x) { x[0] = f(x[0]); }\n"
    with pytest.raises(CompileError, match=r"m\.cu:1: .*considered a host function[^$]*need __device__"):
        jitload.build_inline("m", cuda_sources=missing, arch=ARCH)
    with pytest.raises(CompileError, match="Did you mean 'name'"):
        jitload.build_inline("m", cuda_sources=text, functions=["nmae"], extra_include_paths=[tmp_path], arch=ARCH)
    needs_gpu = text.replace("x[0] = twice", "\n#if __CUDA_ARCH__ >= 700\nx[1] = 1;\n#endif\nx[0] = twice")
    with pytest.raises(CompileError, match=r"m\.cu:5: GPU only: a branch"):
        jitload.build_inline("m", cuda_sources=needs_gpu, extra_include_paths=[tmp_path], arch="cpu")


def test_host_code_that_gcc_rejects_is_left_out_on_the_cpu(tmp_path):
    (tmp_path / "common").mkdir()
    (tmp_path / "src").mkdir()
    (tmp_path / "common/check.cuh").write_text(
        '#pragma once\n#include "deep.cuh"\n#ifdef __CUDACC__\ninline void check() { cudaGetLastError(); }\n#endif\n'
    )
    (tmp_path / "common/deep.cuh").write_text(
        "__device__ inline float three(float x) { return 3 * x; }\n"
        "__global__ void twice(float* x) { x[threadIdx.x] *= 2; }\n"
        "inline void run(float* x) { twice<<<1, 4>>>(x); }\n"
    )
    text = (
        '#include "../common/check.cuh"\n#include <cublas_v2.h>\n'
        "float* allocate(int n) { float* x; cudaMalloc(&x, n); return x; }\n"
        "__global__ void k(float* x) { x[threadIdx.x] = three(x[threadIdx.x]); }\n"
    )
    (tmp_path / "src/k.cu").write_text(text)
    (tmp_path / "src/broken.cu").write_text(text.replace("three(x", "four(x"))
    module = jitload.load("m", sources=[tmp_path / "src/k.cu"], arch="cpu")
    x = np.ones(4, np.float32)
    module.k[1, 4](x)
    module.twice[1, 4](x)
    assert x.tolist() == [6.0] * 4
    (tmp_path / "common/deep.cuh").write_text((tmp_path / "common/deep.cuh").read_text().replace("3 * x", "5 * x"))
    jitload.load("m", sources=[tmp_path / "src/k.cu"], arch="cpu").k[1, 4](x)
    assert x.tolist() == [30.0] * 4
    with pytest.raises(CompileError) as caught:
        jitload.build("m", sources=[tmp_path / "src/broken.cu"], arch="cpu")
    assert [(d.file, d.line) for d in caught.value.diagnostics] == [(str(tmp_path / "src/broken.cu"), 4)]


def test_headers_without_host_code_are_found_by_all_their_names(tmp_path):
    for number in (1, 2):
        (tmp_path / str(number)).mkdir()
        names = f'#include "value.cuh"\n#include "../{number}/value.cuh"\n#include <{number}/value.cuh>\n'
        (tmp_path / f"{number}/n.cuh").write_text(names)
        value = f"std::string s();\nvoid f{number}() {{ cudaFree(0); }}\n"
        value += f"__device__ int value{number}() {{ return {number}; }}\n"
        (tmp_path / f"{number}/value.cuh").write_text(f"#pragma once\n{value}")
    text = '#include "1/n.cuh"\n#include "1/value.cuh"\n#include "2/n.cuh"\n#include "other.cuh"\n'
    (tmp_path / "other.cuh").write_text('#include "2/../1/value.cuh"\n')
    text += "__global__ void k(int* x) { x[0] = value1(); x[1] = value2(); }\n"
    module = jitload.load_inline("m", cuda_sources=text, extra_include_paths=[tmp_path], arch=("cpu", ARCH))
    x = np.zeros(2, np.int32)
    module.k[1, 1](x)
    assert x.tolist() == [1, 2]
    (tmp_path / "2/value.cuh").write_text("void f() { cudaFree(0); }\n__device__ int value2() { return y; }\n")
    for arch in (ARCH, "cpu"):
        with pytest.raises(CompileError) as caught:
            jitload.build_inline("m", cuda_sources=text, extra_include_paths=[tmp_path], arch=arch)
        assert (str(tmp_path / "2/value.cuh"), 2) in {(d.file, d.line) for d in caught.value.diagnostics}


def test_host_code_stays_where_no_main_is_compiled():
    text = "int next(int n) { return n + 1; }\n__global__ void k(int* x) { x[0] = next(x[0]); }\n"
    text += "#ifdef TEST\nint main() {}\n#endif\n"
    flags = ["-default-device"]
    assert [*jitload.load_inline("m", cuda_sources=text, arch=ARCH, extra_cuda_cflags=flags)] == ["k"]


def test_errors_in_kernels_keep_their_lines():
    broken = SAXPY.replace("y[i] + start", "y[i] + begin")
    with pytest.raises(CompileError) as caught:
        jitload.build_inline("s", cuda_sources=broken, arch=ARCH)
    assert caught.value.diagnostics[0].line == 1 + broken[: broken.index("begin")].count("\n")


ODD = r"""
#include <cublasXt.h>
#include <mpi.h>
#include <cub/device/device_scan.cuh>
#include <thrust/pair.h>
#define I(T, n) \
  template void h<T, n>(T*);
#define ALL(T) I(T, 1) I(T, 2)
#define L(T) template void h<T, 3>(T*);
#define J(T) template __global__ void k<T>(T*);
#define KERNEL extern "C" __global__ void
using std::string;
using namespace std::chrono;
typedef float R;
typedef std::vector<R> hosts;
typedef R const (*F)(R);
typedef struct T { R a; } *P;
using A = R[4];
struct Q {};
struct Only {};
bool operator<<(host& o, const Q& x) {}
template <int N = 4> int h(const int* x) {}
void h(list<struct Q> x = {}) { host(); }
I(host, 4)
template <class T> __global__ void k(T* x) {}
J(int)
ALL(host)
int host_number = 3;
const int N = 4;
extern "C" { void h() {} KERNEL plain(R* x, P p, A a, F f) { x[N] = p->a; } }
__global__ void pairs(thrust::pair<int, Q> p) {}
namespace last { void h() {} L(host) }
int main() try {} catch (const E& x) {}
J(Only)
"""


def test_host_code_of_odd_forms_is_left_out():
    names = {kernel.name for kernel in jitload.compile_cubin(ODD, arch=ARCH).kernels}
    assert names == {"k<int>", "k<Only>", "plain", "pairs"}


def test_types_of_the_headers_of_libraries_are_kept():
    """The headers of CUDA's libraries declare types of numbers, and include the headers of narrow floats."""
    text = """
    #include <cublas_v2.h>
    #include <cufft.h>
    __global__ void scale(cufftComplex* x, const __half* factor) {
      __nv_bfloat16 imaginary = __float2bfloat16(4.0f);
      x[0] = cuCmulf(x[0], make_cuFloatComplex(__half2float(factor[0]), __bfloat162float(imaginary)));
    }
    int main() { cufftHandle plan; cublasHandle_t handle; cufftPlan1d(&plan, 256, CUFFT_C2C, 1); }
    """
    (kernel,) = jitload.compile_cubin(text, arch=ARCH).kernels
    assert [parameter.type for parameter in kernel.parameters] == ["float2*", "const __half*"]
    module = jitload.load_inline("fft", cuda_sources=text, arch="cpu")
    x = np.array([[1, 2]], np.float32)
    module.scale[1, 1](x, np.array([3], np.float16))
    assert x.tolist() == [[-5, 10]]


def test_types_that_headers_options_and_names_of_kernels_mention_are_kept(tmp_path):
    (tmp_path / "kernel.h").write_text("__global__ void k(P* p) { p->a = twice(p->b) + LIMIT; }\n")
    text = (
        "#include <vector>\nstruct P { int a, b; };\nstruct Functor { __device__ float operator()() { return 1; } };\n"
        "typedef struct __align__(16) { float x, y, z; } Vector;\nusing Real = double;\ntypedef float* Unused;\n"
        'constexpr int twice(int x) { return 2 * x; }\nconst int LIMIT = 7;\n#include "kernel.h"\n'
        "template <class T, class F> __global__ void t(T* x, ELEMENT* y, F f) { *y = f(); }\n"
        "std::vector<P> values;\nint main() { k<<<1, 1>>>(values.data()); }\n"
    )
    options = {"extra_cuda_cflags": ["-DELEMENT=Real"], "extra_include_paths": [tmp_path]}
    functions = {"k": Launch(), "t": Launch("t<Vector, Functor>")}
    functions["u"] = Launch("t<{T}, Functor>", tune=Tune(T=("Vector", "P")))
    module = jitload.load_inline("p", cuda_sources=text, functions=functions, arch=ARCH, **options)
    assert [parameter.type for parameter in module.t.kernel.parameters] == ["Vector*", "double*", "Functor"]
    cubin = jitload.compile_cubin(text, kernels=["t<Vector, Functor>"], arch=ARCH, **options)
    assert {kernel.name for kernel in cubin.kernels} == {"k", "t<Vector, Functor>"}
    functions.pop("u")
    pair = np.array([0, 3], np.int32)
    jitload.load_inline("p", cuda_sources=text, functions=functions, arch="cpu", **options).k[1, 1](pair)
    assert pair.tolist() == [13, 3]


def test_a_header_with_host_code_keeps_the_types_that_names_of_kernels_mention(tmp_path):
    (tmp_path / "apply.cuh").write_text(
        "template <class F> __global__ void apply(float* x, F f) { *x = f(*x); }\n"
        "template <class F> void run(const std::vector<float*>& xs, F f) { apply<<<1, 1>>>(xs[0], f); }\n"
    )
    text = (
        '#include <vector>\n#include "apply.cuh"\n'
        "struct Twice { __device__ float operator()(float x) { return 2 * x; } };\nint main() { run({}, Twice{}); }\n"
    )
    functions = {"twice": Launch(kernel="apply<Twice>")}
    options = {"arch": ("cpu", ARCH), "extra_include_paths": [tmp_path]}
    module = jitload.load_inline("p", cuda_sources=text, functions=functions, **options)
    x = np.ones(1, np.float32)
    module.twice[1, 1](x, b"\0")
    assert x.tolist() == [2.0]


def test_templates_in_headers_are_kernels_of_a_program(tmp_path):
    header = (
        "template <int n> struct Rows { float* data[n]; int count; };\n"
        "template <class T> __global__ void total(T rows, float* y) { *y = rows.count; }\n"
    )
    (tmp_path / "total.cuh").write_text(header)
    host = "#include <cmath>\n#include <utility>\n{}int main() {{ total<<<1, 1>>>(Rows<2>{{}}, nullptr); }}\n"
    text = host.format('#include "total.cuh"\n')
    for arch in ("cpu", ARCH):
        with pytest.raises(LaunchSpecError, match=r'no kernel but templates\n.*Launch\(kernel="total<…>"\)'):
            jitload.load_inline("p", cuda_sources=text, arch=arch, extra_include_paths=[tmp_path])
    options = {"kernels": ["total<Rows<2>>"], "arch": ARCH, "extra_include_paths": [tmp_path]}
    cubin, expected = (jitload.compile_cubin(each, **options) for each in (text, host.format(header)))
    assert cubin.variables == ()
    assert cubin.kernels[0].parameters[0].layout == expected.kernels[0].parameters[0].layout != ""


def test_a_program_need_not_launch_its_kernels():
    for host in (
        "int main(int count, char** words) { return count; }",
        "void launch(const float* x, int n = 4);\nauto main() -> int { launch(0); }",
    ):
        text = f"__global__ void k(float* x) {{}}\n{host}"
        assert list(jitload.load_inline("p", cuda_sources=text, arch=ARCH)) == ["k"]


def test_a_kernel_that_launches_kernels_is_refused_with_the_next_step():
    text = "__global__ void k(int n) { if (n) k<<<1, 1>>>(n - 1); }\nint main() { k<<<1, 1>>>(2); }"
    with pytest.raises(CompileError, match=r"For nvcc, name a host function that launches them, functions=\['run'\]"):
        jitload.build_inline("p", cuda_sources=text, arch=ARCH)
    with pytest.raises(CompileError, match=r"p\.cu:1: GPU only: launches with <<<…>>>"):
        jitload.load_inline("p", cuda_sources=text, arch="cpu")


@needs_nvcc
def test_kernels_that_launch_kernels_name_the_options_they_need():
    text = "__global__ void k(int n) { if (n) k<<<1, 1>>>(n - 1); }\nvoid run(int n) { k<<<1, 1>>>(n); }"
    with pytest.raises(CompileError, match=r"extra_cuda_cflags=\['-rdc=true'\] and extra_ldflags=\['-lcudadevrt'\]"):
        jitload.build_inline("p", cuda_sources=text, arch=ARCH, functions=["run"])


def test_a_library_without_names_asks_for_names():
    with pytest.raises(LaunchSpecError, match="'s' exports nothing by itself"):
        jitload.build_inline("s", cuda_sources=SAXPY, kind="mixed", arch=ARCH)
    text = "__global__ void k(int* x) { *x = 1; }\nvoid run(int* x) { k<<<1, 1>>>(x); }"
    with pytest.raises(LaunchSpecError, match=r"either kernels or host functions.*functions are: run\..*are: k\. C"):
        jitload.build_inline("p", cuda_sources=text, arch=ARCH)
    text += "".join(f"int f{i}() {{ return 0; }}" for i in range(99))
    with pytest.raises(
        LaunchSpecError, match=r"run, f0.* and 88 more\. The kernels are: k\. For kernels, leave kind= out"
    ):
        jitload.build_inline("p", cuda_sources=text, arch=ARCH, kind="mixed")


ASSERTED = [
    ("enum { N = 100 }; constexpr int unused = 3; static_assert(unused == 4);", 1),  # the only error
    ("#include <string>\n#define N 100\nstd::string f() { return {}; }\n{ }\nstatic_assert(N % 32 == 0 && true);", 5),
]


@pytest.mark.parametrize(("text", "line"), ASSERTED)
@pytest.mark.parametrize("arch", ["sm_90a", "cpu"])
def test_an_assertion_beside_kernels_is_no_host_code(text, line, arch):
    with pytest.raises(CompileError, match=f"m.cu:{line}: static assertion failed"):
        jitload.load_inline("m", cuda_sources=text + "\n__global__ void k(int* x) { *x = N; }", arch=arch)


def test_a_hit_does_not_read_the_source_again(tmp_path, monkeypatch):
    (tmp_path / "value.h").write_text("struct Value { int x; };\n")
    source = '#include "value.h"\n__global__ void k(Value* v) { v->x = 1; }\nint main() { k<<<1, 1>>>(nullptr); }\n'

    def load() -> jitload.Module:
        options = {"arch": "sm_90a", "extra_include_paths": [tmp_path], "keep_module_alive": False}
        return jitload.load_inline("hit", cuda_sources=source, **options)

    assert "+8]" not in str(load().k.ptx())
    with monkeypatch.context() as patch:
        patch.setattr(host_functions, "without_host_code", lambda *_: pytest.fail("the source is read in a hit"))
        load()
    (tmp_path / "value.h").write_text("struct Value { double y; int x; };\n")
    assert "+8]" in str(load().k.ptx())  # where x lies now
