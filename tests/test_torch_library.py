"""PyTorch extension sources that register operators with TORCH_LIBRARY, and that handle objects of Python."""

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from jitload import cpp_extension
from jitload.errors import CompileError, JitLoadError

RELEASE = tuple(map(int, torch.__version__.split(".")[:2]))
LIBRARY = """
#include <torch/extension.h>
at::Tensor scaled_sum(const at::Tensor& a, const at::Tensor& b, double alpha) { return a + b * alpha; }
at::Tensor sum_over(at::Tensor a, c10::ArrayRef<int64_t> dims, bool keep) { return a.sum(dims, keep); }
std::tuple<at::Tensor, at::Tensor> pair(std::vector<at::Tensor> list, std::optional<at::Tensor> other, std::string mode) {
  TORCH_CHECK(mode == "ok", "the mode ", mode, " is unknown")
  return {list[0] + 1, other ? *other : list[1]};
}
std::vector<at::Tensor> pieces(at::Tensor a) { return a.split(1); }
void fill(at::Tensor& a, int64_t value) { a.fill_(value); }
at::Tensor meta(const at::Tensor& a, const at::Tensor& b, double alpha) { return at::empty_like(a); }
at::Tensor scaled(at::Tensor a, double factor) { return a * factor; }
at::Tensor plain(at::Tensor a, std::optional<at::Tensor>, at::ScalarType type, std::vector<int64_t>) { return a.to(type); }
at::Tensor plain_meta(at::Tensor a, std::optional<at::Tensor>, at::ScalarType type, at::IntArrayRef) {
  return at::empty_like(a, a.options().dtype(type));
}
TORCH_LIBRARY(jitload_tests, m) {
  m.def("scaled(Tensor a, int factor) -> Tensor", &scaled);
  m.def("scaled.pair(Tensor a, float factor) -> Tensor[]");
  m.impl("scaled.pair", &scaled);
  m.def("plain(Tensor a, Tensor? b, ScalarType type, SymInt[2] sizes) -> Tensor");
  m.impl("plain", torch::dispatch(c10::kCPU, &plain));
  m.impl("jitload_tests::plain", c10::kMeta, &plain_meta);
  m.def("scaled_sum(Tensor a, Tensor b, float alpha=2.0) -> Tensor");
  m.def("sum_over", &sum_over);
  m.def("pair", pair);
  m.def("pieces(Tensor a) -> Tensor[]", &pieces);
  m.def("fill(Tensor(a!) a, int value) -> ()", TORCH_FN(fill));
}
TORCH_LIBRARY_FRAGMENT(jitload_tests, m) { m.def("triple", [](at::Tensor x) { return x * 3; }); }
TORCH_LIBRARY_IMPL(jitload_tests, CPU, m) { m.impl("scaled_sum", &scaled_sum); }
TORCH_LIBRARY_IMPL(jitload_tests, Meta, m) { m.impl("scaled_sum", TORCH_FN(meta)); }
"""
OBJECTS = """
#include <torch/torch.h>
py::object upper(py::object text) { return text.attr("upper")(); }
int64_t sizes(py::tuple first, py::list second) { return first.size() * 10 + second.size(); }
py::tuple together(int64_t number, torch::Tensor x) { return py::make_tuple(number, x, "text"); }
py::object appended(py::object values) {
  py::list list(values);
  list.append(3);
  return list;
}
py::dict same(py::dict values) { return values; }
int64_t cast(py::object value) { return value.cast<int64_t>(); }
at::Scalar scalar(at::Scalar value) { return value; }
std::string printed(torch::Tensor x) {
  std::ostringstream stream;
  stream << x;
  return stream.str();
}
std::string caught(torch::Tensor x) {
  try {
    return printed(x);
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
}
int64_t total(std::vector<int64_t> values) { return std::accumulate(values.begin(), values.end(), int64_t(0)); }
std::uintptr_t address(torch::Tensor x) { return reinterpret_cast<std::uintptr_t>(x.data_ptr()); }
std::string text(torch::Tensor x) { return c10::str("n=", torch::numel(x), " ", x.type().scalarType()); }
py::str shown(py::object value) {
  if (value.is_none()) throw py::value_error("nothing to show");
  return py::str(value);
}
std::vector<int64_t> facts(torch::Tensor x, torch::Tensor y) {
  const bool before = at::GradMode::is_enabled();
  at::GradMode::set_enabled(!before);
  const bool changed = at::GradMode::is_enabled() != before;
  at::GradMode::set_enabled(before);
  return {x.is_alias_of(y), x.is_conj(), x.is_neg(), x.is_nested(), x.is_inference(), x.is_leaf(), changed};
}
torch::Tensor with_value(torch::Tensor x, torch::Tensor rows, torch::Tensor value) { return x.index_put({rows}, value); }
int checked(torch::Tensor x) { TORCH_CHECK(x.dim() == 2, "2D") TORCH_CHECK(x.numel() > 0) return 1; }
const char* choose(at::Scalar) { return "Scalar"; }
const char* choose(std::string) { return "std::string"; }
py::tuple called(py::object function, torch::Tensor x) {
  py::object value = py::cast(x);
  return py::make_tuple(function(x), value.attr("doubled"), py::list(value), value[0]);
}
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("replaced", [](torch::Tensor x, torch::Tensor data) { x.set_data(data); return x * 2; });
#define BIND(name) m.def(#name, &name);
  BIND(called) BIND(upper) BIND(sizes) BIND(together) BIND(same) BIND(appended) BIND(cast) BIND(scalar) BIND(printed) BIND(caught)
  BIND(total) BIND(address) BIND(text) BIND(shown) BIND(facts) BIND(with_value)
  m.def("checked", &checked, py::arg("x").none(false));
  m.def("exactly", [](uint8_t x) { return x; }, py::arg("x").noconvert());
  m.def("exactly", [](std::vector<int64_t> x) { return x; }, py::arg("x").noconvert());
  m.def("kind", [](int64_t) { return "int"; });
  m.def("kind", [](bool) { return "bool"; });
  m.def("of_none", [](py::none) { return "None"; });
  m.def("of_none", [](int64_t) { return "int"; });
  m.def("overload", [](const char* text) { return choose(text); });
  m.def("missing", [] { return py::object(); });
  m.def("is_null", [] { py::object made, copy = made; return copy.ptr() == nullptr && !copy.is_none(); });
  m.def("is_given", [](std::optional<torch::Tensor> x) { return x.has_value(); }, py::arg("x") = py::none());
}
"""


@pytest.fixture(autouse=True)
def light_headers_only(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cpp_extension, "_build_with_torch", lambda *call: pytest.fail(str(call)))


@pytest.fixture(scope="module")
def operators() -> Iterator[object]:
    path = cpp_extension.load_inline("operators_of_tests", LIBRARY, is_python_module=False)
    assert Path(path).is_file()
    return torch.ops.jitload_tests


def test_operators_take_and_return_all_kinds_of_values(operators: object):
    x = torch.rand(2, 3)
    assert torch.equal(operators.scaled_sum(x, x), x + x * 2)
    assert torch.equal(operators.scaled_sum(x, x, alpha=0.5), x + x * 0.5)
    assert torch.equal(operators.sum_over(x, [1], True), x.sum(1, keepdim=True))
    first, second = operators.pair([x, -x], None, "ok")
    assert torch.equal(first, x + 1)
    assert torch.equal(second, -x)
    assert operators.pair([x, x], x, "ok")[1] is x
    assert [piece.shape for piece in operators.pieces(x)] == [(1, 3), (1, 3)]
    assert operators.fill(x, 7) is None
    assert torch.equal(operators.triple(x), torch.full((2, 3), 21.0))
    with pytest.raises(RuntimeError, match=r"^the mode no is unknown$"):
        operators.pair([x, x], None, "no")


def test_operators_have_schemas_and_implementations_by_key(operators: object):
    schema = torch.ops.jitload_tests.sum_over.default._schema
    assert str(schema) == "jitload_tests::sum_over(Tensor _0, int[] _1, bool _2) -> Tensor _0"
    x = torch.ones(2)
    assert operators.scaled_sum(x.to("meta"), x.to("meta")).device.type == "meta"
    compiled = torch.compile(lambda a: operators.scaled_sum(a, a) + 1, backend="eager", fullgraph=True)
    assert torch.equal(compiled(x), x * 3 + 1)
    for device in ("cpu", "meta"):
        result = operators.plain(x.to(device), None, torch.float64, [1, 2])
        assert (result.device.type, result.dtype) == (device, torch.float64)


def test_an_implementation_must_have_the_types_of_the_schema(operators: object):
    x = torch.ones(2)
    for call, types in (
        (lambda: operators.scaled(x, 3), "Tensor, int -> Tensor\n  inferred types: Tensor, float -> Tensor"),
        (lambda: operators.scaled.pair(x, 3.0), "Tensor, float -> List[Tensor]\n"),
    ):
        with pytest.raises(RuntimeError, match=r"Inferred operator schema .* doesn't match") as caught:
            call()
        assert types in str(caught.value)


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    path = tmp_path_factory.mktemp("objects") / "objects.cpp"
    path.write_text(OBJECTS)
    return cpp_extension.load("objects", str(path))


def test_objects_of_python_come_and_go(objects: ModuleType):
    x = torch.ones(2, 3)
    assert objects.upper("abc") == "ABC"
    assert objects.sizes((1, 2), [1]) == 21
    number, same, text = objects.together(3, x)
    assert (number, text) == (3, "text")
    assert same is x
    values = {1: 2}
    assert objects.same(values) is values
    items = [1]
    assert objects.appended(items) is items
    assert (items, objects.appended((1,))) == ([1, 3], [1, 3])
    assert [objects.total(values) for values in ([1, 2], (3,), {4, 5}, frozenset((6,)))] == [3, 3, 9, 6]
    assert objects.address(x) == x.data_ptr()
    assert objects.text(x) == "n=6 Float"
    assert [objects.checked(x), objects.is_given(), objects.is_given(x)] == [1, False, True]
    assert [*map(objects.kind, (1, True, np.int64(1), np.True_, np.bool_(0)))] == ["int"] * 3 + ["bool"] * 2
    assert (objects.exactly(3), objects.exactly((4, np.int64(5)))) == (3, [4, 5])
    not_exact = (lambda value=value: objects.exactly(value) for value in (torch.tensor(3), np.uint8(3), {3}))
    for refused in (lambda: objects.checked(None), lambda: objects.sizes([1], [1]), *not_exact):
        with pytest.raises(TypeError, match="incompatible function arguments"):
            refused()


class Doubling(torch.Tensor):
    """A tensor whose functions in Python keep the class, and have effects that C++ must not see."""

    @property
    def doubled(self) -> torch.Tensor:
        return self * 2

    @classmethod
    def __torch_function__(
        cls, function: object, types: object, args: tuple = (), kwargs: dict | None = None
    ) -> object:
        value = super().__torch_function__(function, types, args, kwargs or {})
        return value + 1 if function is torch.Tensor.mul else value


def test_functions_of_python_run_as_if_python_called_them(objects: ModuleType):
    x = torch.ones(2).as_subclass(Doubling)
    value, doubled, items, first = objects.called(lambda y: y * 2, x)
    assert {type(tensor) for tensor in (value, doubled, *items, first)} == {Doubling}
    assert value.tolist() == doubled.tolist() == [3, 3]
    with torch.device("meta"):  # a mode, which acts on Python's functions alone
        assert objects.called(lambda y: torch.ones(2), x)[0].device.type == "meta"
    replaced = objects.replaced(x, torch.full((3,), 4.0))
    assert (x.shape, type(replaced), replaced.tolist()) == ((3,), torch.Tensor, [8] * 3)


def test_a_tensor_tells_what_python_knows_of_it(objects: ModuleType):
    x = torch.ones(2, 3)
    assert objects.facts(x, x.view(3, 2)) == [1, 0, 0, 0, 0, 1, 1]
    assert objects.facts(torch.ones(2, dtype=torch.complex64).conj(), x) == [0, 1, 0, 0, 0, 1, 1]
    with torch.inference_mode():
        y = torch.ones(2)
    assert objects.facts(y, x)[4] == 1
    rows, value = torch.tensor([1]), torch.tensor(5.0)
    assert torch.equal(objects.with_value(x, rows, value), x.index_put((rows,), value))
    assert torch.equal(x, torch.ones(2, 3))
    assert objects.shown(2.5) == "2.5"
    with pytest.raises(ValueError, match=r"^nothing to show$"):
        objects.shown(None)


def test_an_error_that_torch_throws_through_the_source_keeps_its_class(objects: ModuleType):
    assert objects.printed(torch.ones(1)) == " 1\n[ CPUFloatType{1} ]"
    x = torch.ones(2, device="meta")
    with pytest.raises(NotImplementedError, match=r"^Cannot copy out of meta tensor; no data!$"):
        objects.printed(x)
    assert objects.caught(x) == "Cannot copy out of meta tensor; no data!"


@pytest.mark.parametrize("value", [3, True, 2.5, 1j])
def test_a_scalar_keeps_the_kind_of_its_number(objects: ModuleType, value: complex):
    for given in (value, np.asarray(value)[()], np.array(value), torch.tensor(value)):
        result = objects.scalar(given)
        assert (type(result), result) == (type(value), value)
    assert type(objects.scalar(np.float32(2.5))) is float
    for refused in (None, "3", [3], np.longdouble(3)):
        with pytest.raises(TypeError, match="incompatible function arguments"):
            objects.scalar(refused)


def test_none_null_and_pointers_convert_to_nothing_else(objects: ModuleType):
    assert objects.cast(True) == 1
    with pytest.raises(RuntimeError, match=r"^Unable to cast Python instance of type <class 'list'> to int$"):
        objects.cast([1])
    assert [objects.of_none(None), objects.of_none(3)] == ["None", "int"]
    assert objects.overload("text") == "std::string"  # no Scalar, although pointers convert to bool
    assert objects.is_null()
    with pytest.raises(TypeError, match="null"):
        objects.missing()


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("float f(torch::Tensor x) {\n  return x;\n}", [], r"2: cannot convert ‘torch::Tensor’ .* to ‘\w+’"),
        ("bool f(torch::Tensor x) { return !x; }", [], "no match for ‘operator!’"),
        ("torch::Tensor f(torch::Tensor x) { return x; }", ["-std=c++14"], r"C\+\+17 or later compatible compiler"),
    ],
)
def test_an_error_of_the_author_is_no_missing_name(text: str, options: list[str], message: str):
    with pytest.raises(CompileError, match=message):
        cpp_extension.load_inline("wrong", text, functions=["f"], extra_cflags=options)


# ---- names that torch has for older sources ----------------------------------------------------------------------------

OLDER = """
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


@pytest.fixture(scope="module")
def older() -> ModuleType:
    return cpp_extension.load_inline("older", OLDER)


def test_python_h_declares_the_overloads_of_math_h(older: ModuleType):
    assert older.absolute_value(-1.5) == 1.5  # `int abs(int)` of C gives 1
    assert older.has_overloads(2.0)


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


def test_a_using_directive_declares_operators_that_are_called_by_their_names(older: ModuleType):
    x = torch.tensor([-1.0, 2.0])
    assert torch.equal(older.positive_part(x), x.relu())
    assert torch.equal(older.add(x, x), x + x)
    assert older.add_integers(2, 3) == 5


@pytest.mark.skipif(RELEASE < (2, 11), reason="from_blob with a deleter needs torch 2.11")
def test_the_deleter_of_memory_may_be_a_function(older: ModuleType):
    assert older.over_memory().tolist() == [1, 2]


def test_older_names_of_constants(older: ModuleType):
    assert older.is_last(20)
    assert older.is_dtype()


@pytest.mark.usefixtures("older")
def test_register_operators_registers_operators():
    x, operators = torch.tensor([1.0, 2.0]), torch.ops.jitload_older
    assert torch.equal(operators.plus(x, 3), x + 3)
    assert torch.equal(operators.times(x, factor=x), x * x)
    assert torch.equal(operators.twice(x), x * 2)
