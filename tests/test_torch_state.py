"""What a tensor of a PyTorch extension says is never out of date, in any thread, and what torch refuses is refused."""

import math
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import ModuleType

import pytest

torch = pytest.importorskip("torch")

from torch.overrides import TorchFunctionMode

from jitload import cpp_extension

TEXT = """
#include <ATen/AccumulateType.h>
#include <ATen/OpMathType.h>
#include <ATen/Parallel.h>
#include <iomanip>
#include <thread>
static torch::Tensor kept;
void keep(torch::Tensor x) { kept = x; }
torch::Tensor kept_tensor() { return kept; }
std::vector<int64_t> kept_facts() {
  return {reinterpret_cast<int64_t>(kept.data_ptr()), kept.dim(), kept.numel(), kept.stride(-1), kept.element_size()};
}
std::vector<int64_t> unsqueezed(torch::Tensor a, torch::Tensor b) {
  a.unsqueeze_(0);
  return b.sizes().vec();
}
torch::Tensor in_thread(torch::Tensor x) {
  torch::Tensor y;
  std::thread thread([&] { y = x * 2 + x.size(0) + x.select(0, 0); });
  thread.join();
  return y;
}
int64_t in_parallel(torch::Tensor x) {
  std::atomic<int64_t> sum{0};
  at::parallel_for(0, 100, 1, [&](int64_t begin, int64_t end) {
    auto y = x + 1;
    sum += (end - begin) * y.size(0);
  });
  return sum;
}
void with_grain(int64_t grain_size) { at::parallel_for(0, 100, grain_size, [](int64_t, int64_t) {}); }
void failing_in_parallel() {
  at::parallel_for(0, 100, 1, [](int64_t begin, int64_t end) { TORCH_CHECK_VALUE(end < 50, "the end is ", 50); });
}
std::vector<double> limits() {
  using Half = std::numeric_limits<at::Half>;
  using BFloat16 = std::numeric_limits<at::BFloat16>;
  using Float8 = std::numeric_limits<at::Float8_e4m3fn>;
  return {Half::lowest(), Half::max(), Half::min(), Half::epsilon(), Half::infinity(), BFloat16::lowest(), BFloat16::max(),
          BFloat16::min(), BFloat16::epsilon(), Float8::max(), Float8::lowest()};
}
torch::Tensor constant() { return torch::tensor({{1.5, 2.5}, {3.5, 4.5}}); }
torch::Tensor bytes(int64_t first) { return torch::tensor({first, int64_t(-1)}, torch::kUInt8); }
torch::Tensor wrapped() { return torch::tensor(std::vector<int>{300, -1}, torch::kUInt8); }
torch::Tensor integers(int64_t a) { return torch::tensor({a, int64_t(0)}, torch::kFloat); }
torch::Tensor halves(double a) { return torch::tensor({a, -a}, torch::kHalf); }
torch::Tensor by_list(torch::Tensor x) { return (x * 1.1 + 1) * torch::tensor({1.5, 2.0}); }
torch::Tensor too_large() { return torch::tensor({1e300, 1.0}); }
torch::Tensor index_nothing(torch::Tensor x) { return x.index({}); }
int64_t address(torch::Tensor x) { return reinterpret_cast<int64_t>(x.data_ptr<float>()); }
std::vector<torch::Tensor> spread(torch::Tensor x) {
  auto [variance, mean] = at::var_mean(x, 1);
  auto [deviation, other] = torch::std_mean(x, 1);
  return {x.var(1), x.std(1), at::var(x, 1), variance, mean, deviation, x.var(), x.std(false)};
}
torch::Tensor plus_one(torch::Tensor x) { return x + 1; }
torch::Tensor rows(torch::Tensor x) { return x.sum(0); }
std::vector<size_t> accumulators() {
  return {sizeof(at::acc_type<at::Half, false>), sizeof(at::acc_type<at::BFloat16, true>), sizeof(at::acc_type<float, false>),
          sizeof(at::acc_type<float, true>), sizeof(at::acc_type<int8_t, true>), sizeof(at::opmath_type<at::Float8_e5m2>)};
}
std::string compared(torch::Tensor x) {
  const at::Half a = x[0].item<at::Half>(), b = x[1].item<at::Half>();
  at::BFloat16 c = x[0].item<at::BFloat16>(), d = x[1].item<at::BFloat16>();
  std::ostringstream stream;
  stream << std::setprecision(2) << a << " " << d << " " << (a < b) << (a > 1) << (1 <= b) << (c < d) << (c > d)
         << (c == d) << " " << std::max(a, b) << " " << at::MemoryFormat::ChannelsLast;
  return stream.str();
}
torch::Tensor scaled(torch::Tensor x, double factor) { return x.mul_(factor); }
torch::Tensor scaled_by_symbol(torch::Tensor x, double factor) { return x *= factor; }
std::tuple<torch::Tensor, torch::Tensor, torch::Tensor> convolution_gradients(torch::Tensor g, torch::Tensor x, torch::Tensor w) {
  return at::convolution_backward(g, x, w, std::nullopt, {1, 1}, {0, 0}, {1, 1}, false, {0, 0}, 1, {true, true, false});
}
torch::Tensor column(torch::Tensor x, std::optional<torch::Tensor> index) {
  return x.index({torch::Tensor(), index.value_or(torch::Tensor())});
}
torch::Tensor set_column(torch::Tensor x, std::optional<torch::Tensor> index, torch::Tensor value) {
  return x.index_put_({torch::Tensor(), index.value_or(torch::Tensor())}, value);
}
torch::Tensor last(torch::Tensor x, std::string text) {
  std::vector<torch::indexing::TensorIndex> indices(2, torch::indexing::Slice());
  indices[0] = text.c_str();
  indices[1] = -1;
  return x.index(indices);
}
std::vector<torch::Tensor> sums(torch::Tensor x) { return at::_foreach_add({x, x}, 2); }
torch::Tensor without_gradient(torch::Tensor x) { return x.requires_grad_(false); }
int64_t no_value() { return static_cast<int64_t>(at::OptionalIntArrayRef().value().size()); }
template <class T>
auto has_conversion(int) -> decltype(at::Scalar().to<T>(), true) { return true; }
template <class T>
bool has_conversion(...) { return false; }
std::vector<bool> conversions() { return {has_conversion<int64_t>(0), has_conversion<at::Half>(0), has_conversion<char>(0), has_conversion<long long>(0)}; }
torch::Tensor to_nothing(torch::Tensor x) {
  torch::Tensor out;
  torch::add_out(out, x, x);
  return out;
}
torch::Tensor converted(torch::Tensor x) { return x.to(torch::requires_grad()); }
std::vector<torch::Tensor> made(torch::Tensor x) {
  return {x.new_ones({2}, torch::requires_grad()), torch::zeros_like(x, torch::requires_grad()), torch::ones({2}, torch::requires_grad())};
}
size_t size_of_type(int type) { return c10::elementSize(static_cast<c10::ScalarType>(type)); }
size_t size_of_nothing() { return torch::Tensor().nbytes(); }
bool nothing_requires_gradient() { return torch::Tensor().requires_grad(); }
const char* same_text(const char* text) { return PY_MAJOR_VERSION ? text : ""; }  // Python.h is there
int64_t total(at::IntArrayRef numbers) { return std::accumulate(numbers.begin(), numbers.end(), int64_t(0)); }
int64_t rest(torch::Tensor x, int64_t start) { return x.sizes().slice(start).size(); }
int64_t part(torch::Tensor x, int64_t start) { return x.sizes().slice(start, 1)[0]; }
bool truth(bool x) { return x; }
size_t bytes_of(torch::Tensor x) { return x.nbytes(); }
bool is_alias(torch::Tensor x) { return x.is_alias_of(x); }
bool has_memory(torch::Tensor x) { return x.data_ptr() != nullptr; }
torch::Tensor first(torch::Tensor x) { return x.index({0}); }
torch::Tensor dispatched(torch::Tensor x) {
  auto y = torch::empty_like(x);
  AT_DISPATCH_ALL_TYPES_AND2(at::kHalf, at::kBFloat16, x.scalar_type(), "dispatched", ([&] {
    const scalar_t* p = x.data_ptr<scalar_t>();
    scalar_t* q = y.mutable_data_ptr<scalar_t>();
    for (int64_t i = 0; i < x.numel(); ++i) q[i] = p[i] * p[i] + scalar_t(1);
  }));
  return y;
}
"""
FUNCTIONS = re.findall(r"^(?=\w)(?:[\w:<>, ]+>|const char\*|\w[\w:]*) (?!has_conv)(\w+)\(", TEXT, re.MULTILINE)


@pytest.fixture(scope="module")
def module() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:  # torch's own build would hide what the light headers lack
        patch.setattr(cpp_extension, "_build_with_torch", lambda *call: pytest.fail(str(call)))
        openmp = {"extra_cflags": ["-fopenmp"], "extra_ldflags": ["-fopenmp"]}
        module = cpp_extension.load_inline("state", TEXT, functions=FUNCTIONS, **openmp)
        yield module
        module.keep(torch.zeros(1))


def facts(x: torch.Tensor) -> list[int]:
    return [x.data_ptr(), x.dim(), x.numel(), x.stride(-1), x.element_size()]


def test_a_kept_tensor_follows_changes_that_are_made_elsewhere(module: ModuleType):
    parameter = torch.nn.Parameter(torch.rand(2, 3))
    module.keep(parameter)
    assert module.kept_facts() == facts(parameter)
    parameter.data = torch.rand(5, dtype=torch.float64)
    assert module.kept_facts() == facts(parameter)
    assert module.kept_tensor() is parameter
    layer = torch.nn.Linear(4, 2)
    module.keep(layer.weight)
    layer.double()
    assert module.kept_facts() == facts(layer.weight)
    x = torch.rand(4)
    module.keep(x)
    x.resize_(1000, 3)
    assert module.kept_facts() == facts(x)
    x.unsqueeze_(0)
    assert module.kept_facts() == facts(x)


def test_an_argument_that_is_passed_twice_is_one_tensor(module: ModuleType):
    x = torch.rand(3)
    assert module.unsqueezed(x, x) == [1, 3]


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_threads_of_the_text_read_and_compute(module: ModuleType):
    x = torch.rand(3, 3)
    assert torch.equal(module.in_thread(x), x * 2 + 3 + x[0])
    assert module.in_parallel(x) == 300
    with pytest.raises(RuntimeError, match="grain_size >= 0 INTERNAL ASSERT FAILED"):
        module.with_grain(-1)
    start = time.perf_counter()
    with pytest.raises(ValueError, match=r"^the end is 50$"):
        module.failing_in_parallel()
    assert time.perf_counter() - start < 10


TURNS = """
#include <thread>
torch::Tensor in_thread(torch::Tensor x) {
  std::thread thread([&] { x = x * 3; });
  thread.join();
  return x;
}
py::object called(py::object function, torch::Tensor x) { return function(x); }
torch::Tensor called_in_thread(py::object function, torch::Tensor x) {
  const py::gil_scoped_release release;
  std::thread thread([&] {
    const py::gil_scoped_acquire acquire;
    x = function(x).cast<torch::Tensor>();
  });
  thread.join();
  return x;
}
void nap(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }
"""


@pytest.fixture(scope="module")
def turns() -> list[ModuleType]:
    functions = ["in_thread", "called", "called_in_thread", "nap"]
    return [cpp_extension.load_inline(name, TURNS, functions=functions) for name in ("turns", "more_turns")]


def run_all(functions: list[Callable[[], object]]) -> list[object]:
    """Call each function in a thread that does not keep the process alive, and return what has returned in time."""
    results: list[object] = []
    threads = [threading.Thread(target=lambda f=f: results.append(f()), daemon=True) for f in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    return results


def test_a_callback_lets_other_threads_call(turns: list[ModuleType]):
    x, barrier = torch.ones(2), threading.Barrier(2)
    other = run_all([lambda: turns[0].called(lambda y: run_all([lambda: turns[0].in_thread(y)]), x)])
    assert [tensors[0].tolist() for tensors in other] == [[3, 3]]
    same = run_all([lambda: turns[0].called_in_thread(turns[0].in_thread, x)])
    assert [tensor.tolist() for tensor in same] == [[3, 3]]

    def crossing(first: ModuleType, second: ModuleType) -> torch.Tensor:
        return first.called(lambda y: (barrier.wait(), second.in_thread(y))[1], x)

    both = run_all([lambda: crossing(*turns), lambda: crossing(*reversed(turns))])
    assert [tensor.tolist() for tensor in both] == [[3, 3], [3, 3]]


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_child_process_does_not_wait_for_a_thread_of_its_parent(turns: list[ModuleType]):
    sleeper = threading.Thread(target=turns[0].nap, args=(1,))
    sleeper.start()
    time.sleep(0.3)
    if (child := os.fork()) == 0:
        signal.alarm(20)
        turns[0].nap(0)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    sleeper.join()


@pytest.mark.filterwarnings("ignore:.*jit.trace")
def test_a_trace_records_numbers_and_what_is_made_of_them(module: ModuleType):
    traced = torch.jit.trace(module.by_list, torch.ones(2), check_trace=False)
    for x in (torch.full((2,), 3.0), torch.full((2,), 3.0, dtype=torch.float64)):
        assert torch.equal(traced(x), (x * 1.1 + 1) * torch.tensor([1.5, 2.0]))


def test_limits_of_the_short_floats_are_torchs(module: ModuleType):
    half, bfloat16 = torch.finfo(torch.float16), torch.finfo(torch.bfloat16)
    assert module.limits() == [
        half.min, half.max, half.tiny, half.eps, float("inf"), bfloat16.min, bfloat16.max, bfloat16.tiny, bfloat16.eps,
        448.0, -448.0,
    ]  # fmt: skip


def test_tensors_of_numbers_do_not_follow_the_default_device_of_python(module: ModuleType):
    with torch.device("meta"):
        constant = module.constant()
        assert module.plus_one(torch.ones(2, device="cpu")).device.type == "cpu"
    assert torch.equal(constant, torch.tensor([[1.5, 2.5], [3.5, 4.5]]))


def test_numbers_in_braces_must_fit_into_the_dtype(module: ModuleType):
    assert module.bytes(3).tolist() == [3, 255]
    assert module.wrapped().tolist() == [44, 255]
    assert module.integers(2**54 + 2**30 + 1).tolist() == [2.0**54 + 2.0**31, 0]  # rounded once
    assert module.halves(1e6).tolist() == [math.inf, -math.inf]
    with pytest.raises(RuntimeError, match="cannot be converted to type uint8_t without overflow"):
        module.bytes(300)
    with pytest.raises(RuntimeError, match="cannot be converted to type float without overflow"):
        module.too_large()
    with pytest.raises(IndexError, match="Passing an empty index list"):
        module.index_nothing(torch.ones(2))


def test_a_tensor_without_memory_is_an_error(module: ModuleType):
    x = torch.rand(4)
    x.untyped_storage().resize_(0)
    with pytest.raises(RuntimeError, match="data is not allocated yet"):
        module.address(x)
    with pytest.raises(RuntimeError, match="data is not allocated yet"):
        module.address(x.to("meta"))
    with pytest.raises(RuntimeError, match="storage"):
        module.address(torch.rand(3, 3).to_sparse())


def test_what_layouts_without_a_storage_refuse(module: ModuleType):
    sparse, opaque, dense = torch.ones(2, 4).to_sparse(), torch.ones(2, 4).to_mkldnn(), torch.ones(2, 4)
    assert (module.bytes_of(dense), module.is_alias(dense), module.has_memory(dense)) == (32, True, True)
    with pytest.raises(RuntimeError, match=r"^nbytes is not defined for sparse tensors"):
        module.bytes_of(sparse)
    for x in (sparse, opaque):
        with pytest.raises(NotImplementedError, match=r"^Cannot access storage of"):
            module.is_alias(x)
        with pytest.raises(RuntimeError, match=r"^Cannot access data pointer of Tensor that doesn't have storage"):
            module.has_memory(x)


def test_an_integer_is_a_dimension_for_var_and_std(module: ModuleType):
    x = torch.rand(4, 5)
    expected = [x.var(1), x.std(1), x.var(1), x.var(1), x.mean(1), x.std(1), x.var(), x.std(correction=0)]
    for actual, value in zip(module.spread(x), expected, strict=True):
        torch.testing.assert_close(actual, value)


def test_types_that_accumulate_and_compare_are_torchs(module: ModuleType):
    assert module.accumulators() == [4, 4, 8, 4, 8, 4]
    assert module.compared(torch.tensor([1.125, 2.25])) == "1.1 2.2 111100 2.2 ChannelsLast"


def test_dispatch_computes_with_each_dtype_as_torch_does(module: ModuleType):
    tensors = [
        torch.arange(12).to(dtype) for dtype in (torch.uint8, torch.int8, torch.int16, torch.int64, torch.float64)
    ]
    every = torch.arange(2**16, dtype=torch.int32).to(torch.uint16)
    tensors += [bits[torch.isfinite(bits)] for bits in (every.view(torch.float16), every.view(torch.bfloat16))]
    for x in tensors:
        assert torch.equal(module.dispatched(x), x * x + 1)
        assert module.dispatched(x).dtype == x.dtype


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_a_product_in_place_rounds_as_in_cpp(module: ModuleType, dtype: torch.dtype):
    x = torch.linspace(0, 1, 256).to(dtype)
    expected = torch.ops.aten.mul_.Scalar(x.clone(), 0.9)  # x.mul_(0.9) is another operator
    assert torch.equal(module.scaled(x.clone(), 0.9), expected)
    assert torch.equal(module.scaled_by_symbol(x.clone(), 0.9), expected)


def test_an_operator_takes_an_array_of_bools(module: ModuleType):
    g, x, w = torch.ones(1, 2, 2, 2), torch.arange(9.0).view(1, 1, 3, 3), torch.ones(2, 1, 2, 2)
    no_bias = (None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1, [True, True, False])
    results = module.convolution_gradients(g, x, w)
    for mine, expected in zip(results, torch.ops.aten.convolution_backward(g, x, w, *no_bias), strict=True):
        assert (mine is expected is None) or torch.equal(mine, expected)


def test_an_index_means_what_it_means_in_cpp(module: ModuleType):
    x, index = torch.rand(2, 3), torch.tensor([1])
    assert torch.equal(module.column(x, index), x[:, index])
    assert torch.equal(module.set_column(x.clone(), index, torch.tensor(5.0)), x.index_fill(1, index, 5))
    for call in (lambda: module.column(x, None), lambda: module.set_column(x, None, torch.tensor(5.0))):
        with pytest.raises(IndexError, match=r"^at least one index must be provided$"):
            call()
    assert torch.equal(module.last(x, "..."), x[:, 2])
    with pytest.raises(IndexError, match=r"^invalid index of a 0-dim tensor"):
        module.first(torch.tensor(1.0))
    with pytest.raises(ValueError, match=r'Expected "\.\.\." to represent an ellipsis index, but got "\.\."'):
        module.last(x, "..")
    assert (module.rest(x, 1), module.rest(x, 2), module.part(x, 1)) == (1, 0, 3)
    for function, start in ((module.rest, 3), (module.part, 2)):
        with pytest.raises(RuntimeError, match="ArrayRef: invalid slice"):
            function(x, start)


def test_only_a_leaf_can_be_made_to_require_no_gradient(module: ModuleType):
    x = torch.rand(3, requires_grad=True)
    with pytest.raises(RuntimeError, match="you can only change requires_grad flags of leaf variables"):
        module.without_gradient(x * 2)
    assert not module.without_gradient(x).requires_grad
    assert not module.nothing_requires_gradient()
    with pytest.raises(RuntimeError, match=r"cannot take a TensorOptions with options\.requires_grad set as true"):
        module.converted(x)
    assert [result.requires_grad for result in module.made(x)] == [False, True, True]


def test_what_has_no_value_in_torch_is_refused_or_none(module: ModuleType):
    assert module.size_of_type(6) == 4
    quint4x2 = 16  # which the headers do not know
    for call in (module.size_of_nothing, lambda: module.size_of_type(quint4x2)):
        with pytest.raises(RuntimeError, match="Unknown ScalarType"):
            call()
    with pytest.raises((RuntimeError, TypeError), match="out"):
        module.to_nothing(torch.ones(2))
    with pytest.raises(RuntimeError, match="bad optional access"):
        module.no_value()
    assert (module.same_text(None), module.same_text("a")) == (None, "a")
    assert module.conversions() == [True, True, False, False]


def test_an_array_of_integers_is_a_list_or_tuple_of_integers_or_tensors(module: ModuleType):
    numpy = pytest.importorskip("numpy")
    for numbers in ([1, 2], (1, True, 1), torch.Size([3]), [torch.tensor(2), 1]):
        assert module.total(numbers) == 3
    for numbers in ([numpy.float32(1.5)], [1.5], [numpy.int64(3)], numpy.array([3]), range(3), None, 3):
        with pytest.raises(TypeError, match="incompatible function arguments"):
            module.total(numbers)


def test_a_bool_parameter_takes_what_has_a_truth_value(module: ModuleType):
    numpy = pytest.importorskip("numpy")
    assert [*map(module.truth, (True, 0, 2.5, None, numpy.bool_(True), torch.tensor(0)))] == [1, 0, 1, 0, 1, 0]
    for value in (int, "a", [1], numpy.str_("a")):  # without a slot for the truth value, as pybind11 asks
        with pytest.raises(TypeError, match="incompatible function arguments"):
            module.truth(value)


def test_transforms_and_modes_of_torch_hold_inside_a_text(module: ModuleType):
    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

    x = torch.rand(3, 4)
    assert torch.equal(torch.vmap(module.rows)(x.expand(2, 3, 4)), x.sum(0).expand(2, 4))
    with FakeTensorMode() as mode:
        fake = module.plus_one(mode.from_tensor(x))
    assert isinstance(fake, FakeTensor)
    assert fake.shape == x.shape
    assert type(module.plus_one(x.as_subclass(Loud))) is torch.Tensor
    columns = torch.tensor([1])  # in an array of arguments, too
    assert torch.equal(module.column(x, columns.as_subclass(Loud)), x[:, columns])
    assert {*map(type, module.sums(x.as_subclass(Loud)))} == {torch.Tensor}
    with LoudMode():
        one_more = module.plus_one(x)
    assert torch.equal(one_more, x + 1)


class Loud(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, arguments=(), keywords=None):
        raise AssertionError("C++ calls no function of Python")


class LoudMode(TorchFunctionMode):
    def __torch_function__(self, function, types, arguments=(), keywords=None):
        raise AssertionError("C++ calls no function of Python")
