"""Host functions with plain types: exported like kernels, from texts with and without kernels."""

import ctypes
import inspect

import pytest
import torch
from builds import ARCH
from builds import build as build_kernel
from support.nvcc import needs_nvcc

import jitload
from jitload import Launch
from jitload.errors import CompileError, JitLoadError, LaunchSpecError, SignatureError

PLAIN = r"""
#include <complex>
#include <cstddef>
#include <stdexcept>
struct Pair { float a; int b; };
enum class Mode : unsigned char { first, second = 7 };
namespace ns {
/* The sum of x. */
double total(const float* x, std::size_t n) {
  double sum = 0;
  for (std::size_t i = 0; i < n; ++i) sum += x[i];
  return sum;
}
}
namespace ns { template <class T> struct Nested { T number; Pair pairs[2]; }; }
double nested(const ns::Nested<short>& nested) { return nested.number + nested.pairs[1].a + nested.pairs[1].b; }
int pick(Pair pair, Mode mode, const Mode* modes) { return int(pair.a) + pair.b + int(mode) + int(modes[1]); }
void fails(const float* x, int which) {
  if (which == 0) throw std::out_of_range("no such element");
  if (which == 1) throw 5;
}
unsigned long long large(const unsigned long long& value, float*) { return value; }
template <class T> T* first(T* x) { return x; }
template <class T> void fill(T* x, int n, T value) { for (int i = 0; i < n; ++i) x[i] = value; }
void over(float* x, int n) { fill(x, n, 1.0f); }
void over(double* x, int n) { fill(x, n, 2.0); }
auto doubled(const std::complex<float>* x) -> float { return 2 * x->real(); }
int chosen(const float* x) { return 4; }
int chosen(const float* x, int n = 2) { return n; }
template <class T = float, int N = 3>
float scaled(const T* x, T by = T{N}, struct Pair pair = Pair()) { return *x * by; }
#define MAKES(type) double made_##type(const type* x, int n) { return x[n]; }
MAKES(float)
namespace ns { inline namespace v1 { enum Mode moded(enum Mode mode) { return mode; } } }
// the end \\"""
FUNCTIONS = {
    "total": Launch(host="x", args={"n": "x.numel()"}),
    "pick": Launch(host="modes"),
    "nested": Launch(doc="A structure in a structure."),
    "fails": Launch(host="x", nullable="x"),
    "large": Launch(nullable="arg1", doc="As large."),
    "doubled": Launch(host="x"),
    "fill": Launch(kernel="fill<double>", host="x"),
    "over": Launch(kernel="over(double*, int)", host="x"),
    "chosen": Launch(kernel="chosen(const float*, int)", host="x"),
    "scaled": Launch(kernel="scaled<>", host="x"),
    "made_float": Launch(host="arg0"),
    "moded": Launch(kernel="ns::moded"),
}
LABEL = Launch(kernel="label(tvm::ffi::TensorView)", doc="Its label.")
X = torch.arange(6.0)


@pytest.fixture(scope="module")
def plain() -> jitload.Module:
    return jitload.load_inline("plain", cpp_sources=PLAIN, functions=FUNCTIONS)


def structure(name, **fields):
    return type(name, (ctypes.Structure,), {"_fields_": (*fields.items(),)})


Pair = structure("Pair", a=ctypes.c_float, b=ctypes.c_int)
Nested = structure("Nested", number=ctypes.c_short, pairs=Pair * 2)


def test_the_members_of_structures_are_not_known(plain):
    modes = torch.tensor([0, 7], dtype=torch.uint8)
    assert plain.pick(bytes(Pair(3, 4)), 1, modes) == 3 + 4 + 1 + 7
    with pytest.raises(TypeError, match=r"'pair' \(Pair\): .*knows no member of Pair; pass bytes, bytes\("):
        plain.pick(Pair(3, 4), 1, modes)
    assert plain.nested(bytes(Nested(5, (Pair(0, 0), Pair(1, 2))))) == 8


def test_results_arguments_and_computed_parameters(plain):
    assert plain.total(X) == 15.0
    assert plain.large(2**40, None) == 2**40
    assert plain.large(5, ctypes.c_void_p(0)) == 5
    assert plain.doubled(torch.tensor([1.5 + 1j])) == 3
    filled = torch.zeros(3, dtype=torch.float64)
    assert plain.fill(filled, 2, 1.5) is None
    assert filled.tolist() == [1.5, 1.5, 0]
    plain.over(filled, 3)
    assert filled.tolist() == [2, 2, 2]


def test_functions_are_found_behind_default_arguments_and_macros(plain):
    assert plain.chosen(X, 9) == 9
    assert plain.scaled(X[2:3], 4.0, bytes(8)) == 8
    assert plain.made_float(X, 5) == 5
    assert plain.moded(7) == 7
    assert plain.chosen.__doc__ == "chosen(const float* x, int n)"


def test_a_function_describes_itself(plain):
    assert str(inspect.signature(plain.total)) == "(x: torch.Tensor, /) -> float"
    assert plain.total.__doc__ == "total(const float* x)"
    assert plain.large.__doc__.startswith("As large.")
    assert repr(plain).startswith("<jitload.Module 'plain': total(const float* x); pick(Pair pair, Mode mode, ")
    assert plain.total.call(x=X) == 15.0
    with pytest.raises(AttributeError, match=r"total\(\) is a host function: it has no kernel of its own to show"):
        _ = plain.total.kernel
    with pytest.raises(TypeError, match=r"total\(\) is a host function, which chooses its launches itself"):
        plain.total[1, 1]


def test_a_module_that_exports_nothing_says_what_to_do():
    module = jitload.load_inline("silent", cpp_sources="int add(int a, int b) { return a + b; }")
    assert repr(module) == "<jitload.Module 'silent': no functions>"
    with pytest.raises(AttributeError, match=r"has no function 'add'; it has: none\. .* functions=\['name'\]"):
        module.add  # noqa: B018


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda m: m.total(X.double()), TypeError, "argument 'x' must be a float32 CPU tensor, got float64"),
        (lambda m: m.large(-1, None), ValueError, r"argument 'value' \(unsigned long\) must be from 0|must be from 0"),
        (lambda m: m.large(1, X), ValueError, "on cpu; .* host memory, declare it with Launch.host="),
        (lambda m: m.large(2**63, None), ValueError, r"large\(\): the result 9223372036854775808 is too large"),
        (lambda m: m.fails(None, 0), RuntimeError, r"^fails\(\): no such element$"),
        (lambda m: m.fails(None, 1), RuntimeError, "it threw an object that is not a std::exception"),
    ],
)
def test_calls_are_checked_like_those_of_kernels(plain, call, error, message):
    with pytest.raises(error, match=message):
        call(plain)


@pytest.mark.parametrize(
    ("functions", "error", "message"),
    [
        ({"pointer": Launch(host="x")}, SignatureError, r"function 'pointer': the result has the type float\*"),
        (["writes"], SignatureError, "function 'writes': parameter 2 has the type int&, which cannot be passed"),
        ({"total": Launch(host="y")}, LaunchSpecError, "there is no parameter 'y'"),
        ({"total": Launch(grid=1)}, LaunchSpecError, r"Launch\.grid: is for kernels, but 'total' is a host function"),
        (["main"], LaunchSpecError, r"main\(\) cannot be exported"),
    ],
)
def test_what_cannot_be_exported_is_refused(functions, error, message):
    text = """
    float* pointer(float* x) { return x; }
    void writes(float* x, int& n) { n = 1; }
    void shows(const char* text, float*) {}
    double total(const float* x, unsigned long n) { return x[n]; }
    int main() { return 0; }"""
    with pytest.raises(error, match=message):
        jitload.build_inline("refused", cpp_sources=text, functions=functions)


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("int f(float*) { return 1; } int f(int*) { return 2; }", r"'f' is overloaded, .*Launch\(kernel='f\(float\*"),
        ("int f(float*) { return 1;", "^the C.. compiler could not compile 'm': the end of the source:1: "),
        ("#include <list>\nint f(std::list<int>) { return 1; }", "'f' takes or returns std::__cxx11::list<int>, which"),
    ],
)
def test_errors_in_an_export_say_what_to_do(text, hint):
    with pytest.raises(CompileError, match=hint):
        jitload.build_inline("m", cpp_sources=text, functions="f")


def test_functions_of_tvm_ffi_stand_beside_plain_ones():
    """One type of tvm-ffi's hides behind another name, which only the compiler sees through."""
    text = r"""
    using View = tvm::ffi::TensorView;
    int64_t rank(View x) { return x.ndim(); }
    tvm::ffi::String label(tvm::ffi::TensorView) { return "n"; }
    int64_t label(tvm::ffi::TensorView, int) { return 1; }
    float head(const float* x) { if (*x < 0) TVM_FFI_THROW(ValueError) << "negative"; return *x; }
    """
    functions = {"rank": None, "label": LABEL, "head": Launch(host="x")}
    module = jitload.load_inline("both", cpp_sources=text, functions=functions)
    assert (module.rank(X), module.label(X), module.head(X + 2)) == (1, "n", 2.0)
    assert sorted(module) == ["head", "label", "rank"]
    with pytest.raises(ValueError, match=r"head\(\): negative"):
        module.head(X - 3)


def test_objects_of_classes_that_the_text_defines():
    """Their names have no sign of tvm-ffi, so the compiler says that tvm-ffi converts them."""
    text = r"""
    struct PointObj : tvm::ffi::Object {
      int64_t x;
      explicit PointObj(int64_t x) : x(x) {}
      TVM_FFI_DECLARE_OBJECT_INFO_FINAL("test_host_functions.Point", PointObj, tvm::ffi::Object);
    };
    struct Point : tvm::ffi::ObjectRef {
      TVM_FFI_DEFINE_OBJECT_REF_METHODS_NULLABLE(Point, tvm::ffi::ObjectRef, PointObj);
    };
    Point make() { return Point(tvm::ffi::make_object<PointObj>(3)); }
    int64_t x_of(const PointObj* point, int64_t by) { return point->x * by; }
    int64_t x_in(Point point) { return point->x; }
    struct Hidden;
    int64_t is_null(Hidden* hidden) { return hidden == nullptr; }
    """
    functions = {"make": None, "x_of": None, "x_in": None, "is_null": Launch(nullable="hidden")}
    module = jitload.load_inline("points", cpp_sources=text, functions=functions)
    point = module.make()
    assert (module.x_of(point, 2), module.x_in(point), module.is_null(None)) == (6, 3, 1)
    with pytest.raises(TypeError, match="Mismatched type on argument #0"):
        module.x_of(X, 2)


def test_launch_host_is_for_functions_of_the_host():
    with pytest.raises(LaunchSpecError, match="may be set only for host functions, because a kernel cannot read"):
        build_kernel("__global__ void k(float* x) {}", functions={"k": Launch(host="x")})


MIXED = r"""
__global__ void scale(float* x, float by, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) x[i] *= by;
}
// Scale x in place.
void run(float* x, float by, int n, cudaStream_t stream) { scale<<<(n + 255) / 256, 256, 0, stream>>>(x, by, n); }
cudaError_t check(int code) { return static_cast<cudaError_t>(code); }
void overflows(float* x) { scale<<<1, 2048>>>(x, 1, 1); }
long long handle(cudaStream_t stream) { return reinterpret_cast<long long>(stream); }
int three() { return 3; }
void nothing() noexcept {}
int device(const float* x) { int number = -1; cudaGetDevice(&number); return number; }
#ifdef DLPACK_MAJOR_VERSION
#error plain functions need none of these headers, which take two seconds
#endif
"""
MIXED_FUNCTIONS = {
    "run": Launch(args={"n": "x.numel()"}), "check": None, "overflows": None, "handle": None, "device": None,
    "three": None, "nothing": None,
}  # fmt: skip


@pytest.fixture(scope="module")
def mixed() -> jitload.Module:
    return jitload.load_inline("mixed", cuda_sources=MIXED, functions=MIXED_FUNCTIONS, arch=ARCH)


@needs_nvcc
def test_a_stream_is_not_a_parameter_and_errors_of_cuda_are_raised(mixed):
    assert mixed.run.__doc__ == "run(float* x, float by)"
    assert (mixed.check(0), mixed.three(), mixed.nothing()) == (None, 3, None)
    no_code = f"cudaErrorNoKernelImageForDevice: this library has {ARCH}, and no code for this GPU: build it with arch="
    with pytest.raises(RuntimeError, match=rf"^check\(\): {no_code}"):
        mixed.check(209)
    with pytest.raises(RuntimeError, match=r"^check\(\): cudaErrorInvalidValue: invalid argument$"):
        mixed.check(1)
    assert mixed.handle.call(stream=4096) == 4096
    with pytest.raises(ValueError, match=r"run\(\): argument 'x' must be a CUDA tensor, but it is on cpu; if it is"):
        mixed.run(X, 2.0)
    with pytest.raises(TypeError, match=r"check\(\) has no argument 'stream'"):
        mixed.check.call(0, stream=1)


def test_kernels_and_functions_of_the_host_take_two_calls():
    with pytest.raises(JitLoadError, match="'scale' is a kernel and 'run' is not"):
        build_kernel(MIXED, functions=["run", "scale"])


@needs_nvcc
@pytest.mark.gpu
def test_host_functions_launch_on_a_gpu(gpu, mixed):
    x = X.cuda()
    mixed.run(x, 2.0)
    torch.testing.assert_close(x.cpu(), X * 2)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        mixed.run(x, 2.0)
        assert mixed.handle() == stream.cuda_stream
    stream.synchronize()
    torch.testing.assert_close(x.cpu(), X * 4)
    mixed.run.call(x, by=0.5, stream=stream)
    stream.synchronize()
    torch.testing.assert_close(x.cpu(), X * 2)
    with pytest.raises(RuntimeError, match=r"^overflows\(\): cudaErrorInvalid(Configuration|Value): "):
        mixed.overflows(x)
    mixed.run(x, 1.0)  # the error was reported once
    assert mixed.device(x) == x.device.index


@needs_nvcc
@pytest.mark.gpu
def test_the_device_of_the_tensors_is_current(two_gpus, mixed):
    assert mixed.device(X.to("cuda:1")) == 1
    assert torch.cuda.current_device() == 0
