"""PyTorch extension sources of libraries: names that torch has for older sources, and the C functions that it declares."""

from pathlib import Path
from types import ModuleType

import pytest

torch = pytest.importorskip("torch")

from jitload import cpp_extension
from jitload.errors import JitLoadError

RELEASE = tuple(map(int, torch.__version__.split(".")[:2]))
SOURCE = """
#include <torch/extension.h>
using namespace at;
double absolute_value(double x) { return abs(x); }
bool has_overloads(double x) { float y = x; return sizeof(sqrt(y)) == sizeof(float) && isinf(y / 0); }
Tensor positive_part(Tensor x) { return max(zeros_like(x), x); }
Tensor add(Tensor a, Tensor b) { return a + b; }
int64_t add(int64_t a, int64_t b) { return a + b; }
void release(void*) {}
Tensor over_memory() {
  static float values[] = {1, 2};
  return from_blob(values, {2}, release);
}
bool is_last(int64_t type) { return type < static_cast<int64_t>(DeviceType::COMPILE_TIME_MAX_DEVICE_TYPES); }
bool is_dtype() { return ScalarType(c10::CppTypeToScalarType<float>()) == torch::kF32; }
Tensor times(const Tensor& x, const Tensor& y) { return x * y; }
static auto registry = torch::RegisterOperators()
  .op("jitload_older::plus", [](Tensor x, int64_t n) { return x + n; })
  .op("jitload_older::times(Tensor x, Tensor factor) -> Tensor", &times);
static auto another = torch::RegisterOperators("jitload_older::twice", [](Tensor x) { return x * 2; });
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("absolute_value", &absolute_value);
  m.def("has_overloads", &has_overloads);
  m.def("positive_part", &positive_part);
  m.def("add", py::overload_cast<Tensor, Tensor>(&add));
  m.def("add_integers", py::overload_cast<int64_t, int64_t>(&add));
  m.def("over_memory", &over_memory);
  m.def("is_last", &is_last);
  m.def("is_dtype", &is_dtype);
}
"""


@pytest.fixture(autouse=True)
def light_headers_only(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cpp_extension, "_build_with_torch", lambda *call: pytest.fail(str(call)))


@pytest.fixture(scope="module")
def module() -> ModuleType:
    return cpp_extension.load_inline("older", SOURCE)


def test_python_h_declares_the_overloads_of_math_h(module: ModuleType):
    assert module.absolute_value(-1.5) == 1.5  # `int abs(int)` of C gives 1
    assert module.has_overloads(2.0)


def test_other_headers_of_torch_declare_abs_alone_and_comments_may_be_in_another_encoding(tmp_path: Path):
    path = tmp_path / "types.cpp"
    text = (
        b"// gr\xf6sser\n#include <torch/types.h>\n"
        b"double f(double x) { float y = abs(x); return y + (sizeof(sqrt(y)) == sizeof(double)); }\n"
        b'TORCH_LIBRARY(jitload_types, m) { m.def("f", &f); }\n'
    )
    path.write_bytes(text)
    cpp_extension.load("types_of_tests", [path], is_python_module=False)
    assert torch.ops.jitload_types.f(-1.5) == 2.5
    path.write_bytes(text + b'const char* name = "gr\xf6sser";')
    with pytest.raises(JitLoadError, match="is not UTF-8"):
        cpp_extension.load("types_of_tests", [path], is_python_module=False)


def test_a_using_directive_declares_operators_that_are_called_by_their_names(module: ModuleType):
    x = torch.tensor([-1.0, 2.0])
    assert torch.equal(module.positive_part(x), x.relu())
    assert torch.equal(module.add(x, x), x + x)
    assert module.add_integers(2, 3) == 5


@pytest.mark.skipif(RELEASE < (2, 11), reason="from_blob with a deleter needs torch 2.11")
def test_the_deleter_of_memory_may_be_a_function(module: ModuleType):
    assert module.over_memory().tolist() == [1, 2]


def test_older_names_of_constants(module: ModuleType):
    assert module.is_last(20)
    assert module.is_dtype()


@pytest.mark.usefixtures("module")
def test_register_operators_registers_operators():
    x, operators = torch.tensor([1.0, 2.0]), torch.ops.jitload_older
    assert torch.equal(operators.plus(x, 3), x + 3)
    assert torch.equal(operators.times(x, factor=x), x * x)
    assert torch.equal(operators.twice(x), x * 2)
