"""PyTorch extension sources: how they are recognised, the table of operators, and the headers that they include."""

import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import jitload
from jitload import cpp_extension
from jitload.host_cpp.torch_headers import FORWARDED, RENAMED, find_or_write_torch_headers
from jitload.request import torch_operators, torch_text
from jitload.request.arguments import Options, TorchText
from jitload.request.sources import Sources
from jitload.host_cpp.torch_errors import missing_names
from jitload.request.kind import is_torch_text
from jitload.request.torch_text import torch_sources


def test_functions_may_ask_for_the_kernels_of_a_text_for_torch():
    text = "__global__ void scale(float* x) {}\nvoid run(at::Tensor x) { scale<<<1, 1>>>(x.data_ptr<float>()); }"
    sources = Sources(cuda=(("m.cu", text),))
    assert not is_torch_text(sources, ["scale"])
    assert is_torch_text(sources, ["run"])


# Together, they have all types of arguments and results that operators of torch 2.13 have.
OPERATORS = """
    _adaptive_avg_pool2d _add_batch_dim _add_relu _addmm_activation _aminmax _amp_foreach_non_finite_check_and_unscale
    _amp_update_scale _assert_async _assert_tensor_metadata _autocast_to_reduced_precision _backward
    _batch_norm_impl_index_backward _batch_norm_no_update _cdist_forward _cslt_sparse_mm_search
    _cudnn_attention_backward _cudnn_init_dropout_state _cudnn_rnn _cufft_clear_plan_cache _empty_affine_quantized
    _foreach_abs _foreach_add _fused_dropout _has_compatible_shallow_copy_type _histogramdd_bin_edges _linalg_det
    _linalg_svd _local_scalar_dense _lstm_mps _resize_output aminmax cat chunk clamp mkldnn_rnn_layer_backward
    promote_types q_scale std std_mean svd
"""


@pytest.mark.parametrize("which", ["some", pytest.param("all", marks=pytest.mark.soak)])
def test_operators_of_the_installed_torch_compile(which: str):
    """Build a text that names operators, so that the compiler sees each signature in torch's headers."""
    headers = Path(torch.__file__).parent / "include/ATen/ops"
    every = {path.stem for path in headers.glob("*.h") if not path.stem.endswith(("_native", "_ops", "_dispatch"))}
    names = OPERATORS.split() if which == "some" else sorted(every)
    uses = "\n".join(f"// at::{name}( x.{name}( x.{name}_( at::{name}_out(" for name in names)
    text = f"{uses}\ntorch::Tensor same(torch::Tensor x) {{ return x; }}\n"
    x = torch.ones(1)
    # Unlike that of `cpp_extension`, this function raises an error if the light headers do not compile.
    assert jitload.load_inline("operators", cpp_sources=text, functions=["same"]).same(x) is x
    assert len(torch_operators.operator_declarations(uses).functions) > 2 * len(names) - 30


MISSING = """
‘nn’ is not a member of ‘torch’ → torch::nn
namespace "at" has no member "foo" → at::foo
‘using Tensor = class at::Tensor’ {aka ‘class at::Tensor’} has no member named ‘bar’; did you → at::Tensor::bar
torch/library.h: No such file or directory → torch/library.h
mine/nowhere.h: No such file or directory →
‘List’ in namespace ‘c10’ does not name a template type → c10::List
‘TORCH_LIBRARY’ was not declared in this scope → TORCH_LIBRARY
static assertion failed: TORCH_LIBRARY: jitload's headers for torch lack this → TORCH_LIBRARY
‘tensors’ was not declared in this scope; did you mean ‘torch::Tensor’? →
‘PyErr_Clear’ was not declared in this scope → PyErr_Clear
‘CHECK_EQ’ was not declared in this scope → CHECK_EQ
‘CHECK_INPUT’ was not declared in this scope →
call of overloaded ‘conv2d(torch::Tensor&, int)’ is ambiguous → conv2d(torch::Tensor&, int)
incomplete type ‘jitload_torch::Code<std::complex<double> >’ used in nested name specifier → std::complex<double>
this range-based "for" statement requires a suitable "begin" function and none was found → begin
could not convert ‘{x.at::Tensor::dim(), <expression>}’ from ‘<list>’ to ‘std::vector<at::Tensor>’ → std::vector<at::Tensor>
no match for ‘operator!’ (operand type is ‘torch::Tensor’ {aka ‘at::Tensor’}) →
no match for ‘operator!’ (operand type is ‘pybind11::object’) → operator! of pybind11::object
no match for ‘operator<<’ (operand types are ‘std::ostream’ and ‘std::vector<int>’) → operator<< of std::ostream
conversion from ‘pybind11::object’ to non-scalar type ‘pybind11::list’ requested → pybind11::object
no instance of overloaded function "gpuAtomicMax" matches the argument list → gpuAtomicMax
"""


@pytest.mark.parametrize("line", MISSING.strip().splitlines())
def test_missing_names_are_those_of_torch(line: str):
    message, name = map(str.strip, line.split("→"))
    assert missing_names(f"x.cpp:3: error: {message}") == ([name] if name else [])


@pytest.mark.parametrize(
    ("text", "line", "names"),
    [
        ("using namespace torch::autograd;", "x.cpp:3: error: ‘autograd’ is not a namespace-name", ["autograd"]),
        ("using namespace at;", "x.cpp:3: error: ‘TensorIteratorConfig’ was not declared in this scope", ["TensorIteratorConfig"]),
        ("using namespace c10;", "x.cpp:3: error: ‘IValue’ does not name a type", ["IValue"]),
        ("using namespace torch; nn::relu(1);", 'x.cu(9): error: name followed by "::" must be a class or namespace name', ["nn::relu"]),
        ("struct F : autograd::Function<F> {};", "x.cu(9): error: not a class or struct name", ["autograd::Function"]),
        ("using namespace torch;", "x.cpp:3: error: ‘n’ was not declared in this scope", []),
        ("using namespace mine;", "x.cpp:3: error: ‘IValue’ was not declared in this scope", []),
        ("", "a/x.hpp:3:7: error: ‘DeviceTypeName’ was not declared in this scope", ["DeviceTypeName"]),
        ("", 'a/x.cuh(3): error: identifier "mine" is undefined', []),
    ],
)  # fmt: skip
def test_a_using_directive_makes_unqualified_names_those_of_torch(text: str, line: str, names: list[str]):
    assert missing_names(line, [text]) == names


BEFORE, UNQUALIFIED = "expected constructor before ‘(’ token", "expected unqualified-id before ‘&’ token"
NOT_A_CLASS = 'name followed by "::" must be a class or namespace name'
MINE = """
    #define TORCH_MINE(x) x
    // TORCH_COMMENT(x)
    TORCH_SELECTIVE_CLASS(mine) { TORCH_CHECK(true); TORCH_MINE(1); }"""
CATCHES = "try { f(); } catch (const c10::IndexError& e) { g(); } catch (const c10::Error& e) { h(); }"


@pytest.mark.parametrize(
    ("message", "text", "names"),
    [
        (BEFORE, MINE, ["TORCH_SELECTIVE_CLASS"]),
        ("‘nm’ is not a member of ‘torch’", MINE, ["torch::nm"]),
        (BEFORE, "int f(int x) { TORCH_CHECK(x > 0) return x }", []),
        (BEFORE, "AT_DISPATCH_ALL_TYPES(t, n, f) C10_LAUNCH_BOUNDS_1(32)", []),
        (NOT_A_CLASS, "int n = at::cuda::philox::unpack(1) + at::ceil_div(1, 2);", ["at::cuda::philox::unpack"]),
        (NOT_A_CLASS, "int n = mine::f(at::ceil_div(1, 2));", []),
        (UNQUALIFIED, CATCHES, ["c10::IndexError"]),
        (UNQUALIFIED, "const & y = at::cuda::f(); TORCH_FOO(y);", ["TORCH_FOO"]),
        (UNQUALIFIED, "const & y = at::cuda::f();", []),
    ],
)
def test_unknown_macros_are_missing_where_the_log_names_nothing(message: str, text: str, names: list[str]):
    assert missing_names(f"x.cpp:1:14: error: {message}", [text]) == names


# ---- the C++ library ---------------------------------------------------------------------------------------------


def test_names_of_the_standard_library_need_no_include():
    text = """
int64_t f(torch::Tensor x) { return int64_t(fmax(1., atan2(0., 1.))) + rand() % 1 + (RAND_MAX > 0) + at::internal::GRAIN_SIZE; }
int64_t g(torch::Tensor x) { return strlen("four") + std::gcd(4, 6) + static_cast<int64_t>(std::trunc(1.5)); }
int64_t h(std::tuple<int, int> x) { return std::apply([](auto... i) { return std::max({i...}); }, x); }
bool i() { return std::is_signed_v<int> && std::uniform_int_distribution<int>(1, 2).min() == 1; }
int64_t index_size(torch::Tensor x) { std::ostringstream s; s << x.get_device(); return s.str().size(); }
"""
    module = jitload.load_inline("names", cpp_sources=text, functions=["f", "g", "h", "i", "index_size"])
    x = torch.ones(1)
    assert (module.f(x), module.g(x), module.h((1, 2)), module.i()) == (32770, 7, 2, True)
    assert module.index_size(x) == 1  # the index of a device is a character, as in torch


def test_conditions_see_the_macros_of_torchs_headers_and_a_source_may_define_short_ones():
    conditions = "defined(TORCH_VERSION_MAJOR) && TORCH_VERSION_MAJOR >= 2", "PY_VERSION_HEX >= 0x03080000"
    macros = "".join(f"#define {name} 30\n" for name in ("count", "result", "arguments", "library", "is_first"))
    counted = "".join(f"\n#if {condition}\n n++;\n#endif" for condition in conditions)
    text = f"""#include <torch/extension.h>\n#include <cmath>\n{macros}
    int64_t counted() {{ int64_t n = 0;{counted}\n return n; }}
    int64_t version(torch::Tensor x) {{ return x._version() - 1; }}  // signed, as in torch
    bool has_overloads(float x) {{ return sizeof(ldexp(x, 2)) == 4 && sizeof(llrint(x)) == 8; }}
    int64_t warned(std::vector<int64_t> x) {{ TORCH_WARN_ONCE(x[0]); return x[0] + count; }}
    TORCH_LIBRARY(jitload_short_names, m) {{}}"""
    functions = ["counted", "version", "has_overloads", "warned"]
    module = jitload.load_inline("conditions", cpp_sources=text, functions=functions)
    assert (module.counted(), module.version(torch.ones(1)), module.has_overloads(1.5)) == (len(conditions), -1, True)
    with pytest.warns(UserWarning, match="12"):
        assert module.warned([12]) == 42


def test_a_condition_on_cuda_version_brings_the_header_that_defines_it():
    text = "#include <ATen/cuda/CUDAContext.h>\n#if CUDA_VERSION >= 12000\n#endif"
    [(_, merged)] = torch_sources("m", Sources(host=(("m.cpp", text),)), (), Options(), TorchText())[0].host
    assert "#include <cuda.h>\n" in merged


@pytest.fixture
def fallbacks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list of the reasons for which sources were left to torch, which does not build them here."""
    reasons: list[str] = []
    monkeypatch.setattr(cpp_extension, "_build_with_torch", lambda *call: reasons.append(call[2]))
    return reasons


@pytest.mark.parametrize(
    ("condition", "name"),
    [
        ("#ifdef THO_DISPATCH_SWITCH", "THO_DISPATCH_SWITCH"),  # of a copied header, which this source does not include
        ("#ifndef CHECK\n#error no macro\n#define CHECK(x) x", "CHECK"),
        ("#if HAVE_ERF && \\\n  defined(C10_DEPRECATED_MESSAGE)", "C10_DEPRECATED_MESSAGE, HAVE_ERF"),
        ("#if FROM_AN_OPTION >= 8", "SIZEOF_LONG"),
        ("#define IS_NEW (PYBIND11_VERSION_HEX >= 0x02060000)\n#if IS_NEW", "PYBIND11_VERSION_HEX"),
        ("#if __has_include(<ATen/ops/add.h>)", "ATen/ops/add.h"),
        ('#include "with_condition.h"\n#if 1', "Py_PYTHON_H"),
    ],
)
def test_torch_builds_sources_with_conditions_on_other_macros_of_its_headers(
    condition: str, name: str, fallbacks: list[str], tmp_path: Path
):
    for path in (tmp_path / "with_condition.h", tmp_path / "isystem/system/with_condition.h"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("#pragma once\n#ifdef Py_PYTHON_H\n#endif\n")
    flags = ["-isystem", str(tmp_path / "isystem"), "-DFROM_AN_OPTION=SIZEOF_LONG", "-D", "OF_TWO=HAVE_ERF"]
    source = f"#include <torch/extension.h>\n{condition}\n#endif\nint64_t f() {{ return 1; }}"
    paths = [str(tmp_path)]
    cpp_extension.load_inline("conditions", source, functions=["f"], extra_include_paths=paths, extra_cflags=flags)
    assert fallbacks == [f"missing: {name}"]


def test_other_conditions_keep_sources_from_torchs_build(fallbacks: list[str], tmp_path: Path):
    (tmp_path / "cuda_runtime.h").write_text("#ifdef _GLIBCXX_MATH_H\n#endif\n")  # as CUDA_HOME's headers have it
    source = """
#include <cuda_runtime.h>
#ifndef MY_HEADER_H
#define MY_HEADER_H
#if defined(__CUDACC__) || defined(__CUDA_ARCH__) || defined(USE_ROCM) || defined(__HIP_PLATFORM_AMD__) || _WIN32
#elif __GNUC__ >= 9 && !defined(WITH_CUDA) && !defined(NDEBUG) && !_OPENMP && __has_include(<optional>)
#ifndef M_PI
#define M_PI 3
#endif
#if !defined(TORCH_CHECK) || TORCH_VERSION_MAJOR < 2 || !defined(TORCH_API_INCLUDE_EXTENSION_H)
#error
#endif
#ifdef TORCH_EXTENSION_NAME
int64_t f() { return M_PI * 100; }
#endif
#endif
#endif
"""
    paths = [str(tmp_path)]
    module = cpp_extension.load_inline("own_conditions", source, functions=["f"], extra_include_paths=paths)
    assert (fallbacks, module.f()) == ([], 314)


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("using namespace std; void f() { thread t([] {}); t.join(); }", "exclusive"),
        ("namespace s = std; void f() { s::thread t([] {}); t.join(); }", "exclusive"),
        ('void f() { _Pragma("omp parallel") {} }', "exclusive"),
        ("using namespace std; vector<int> threads;", "kept"),
        ("// each thread\nstd::vector<int> v;", "kept"),
    ],
)
def test_functions_of_a_text_with_threads_release_the_gil(text: str, policy: str):
    assert f"#define JITLOAD_TORCH_GIL {policy}\n" in torch_text._prelude(text, is_cuda=False, implicit=True)


def test_the_headers_of_the_table_compile_without_the_unused_parts():
    text = "".join(f"#include <{header}>\n" for header in torch_text._STD_HEADERS)
    text += "auto f(std::vector<int>& v) { std::sort(v.begin(), v.end()); return std::pow(std::max(v[0], 2), 0.5); }\n"
    flags = [f"-D{guard}" for guard in torch_text._UNUSED_PARTS]
    subprocess.run(["g++", "-std=c++20", "-fsyntax-only", "-x", "c++", *flags, "-"], input=text, text=True, check=True)


def test_the_names_of_torchs_headers_are_written_once_and_whole(tmp_path: Path):
    with ThreadPoolExecutor(8) as pool:
        (directory,) = {*pool.map(find_or_write_torch_headers, [tmp_path] * 8)}
    assert list(directory.parent.iterdir()) == [directory]
    names = {str(path.relative_to(directory)) for path in directory.rglob("*.*h")}
    copied = filter(torch_operators.read_header, torch_operators.COPIED.split())  # some are new in later releases
    assert names == {*copied, *RENAMED, *" ".join(FORWARDED.values()).split(), "Python.h"}


def test_small_headers_are_torchs_own():
    """Macros of torch's headers, accessors and 8-bit floats come from copies of torch's headers."""
    text = """
    #include <torch/extension.h>
    #include <ATen/Dispatch_v2.h>
    std::string sizes(torch::Tensor x) {
      std::string text;
      AT_DISPATCH_ALL_TYPES_AND(at::kHalf, x.scalar_type(), "sizes", [&] {
        auto values = x.packed_accessor64<scalar_t, 2>();
        text = c10::str(values.size(1), ": ", x.accessor<scalar_t, 2>()[1][2], " of ", sizeof(scalar_t));
      });
      return text;
    }
    float first(torch::Tensor x) {
      const auto read = [&](auto zero) { return static_cast<float>(*x.data_ptr<decltype(zero)>()); };
      return AT_DISPATCH_V2(x.scalar_type(), "first", AT_WRAP([&] { return read(scalar_t()); }), at::kBFloat16,
                            AT_EXPAND(AT_INTEGRAL_TYPES), AT_EXPAND(AT_FLOAT8_TYPES));
    }
    int64_t position(torch::Tensor x) {
      return AT_DISPATCH_INDEX_TYPES(x.scalar_type(), "index", [&] { return int64_t(*x.data_ptr<index_t>()); });
    }
    """
    functions = ["sizes", "first", "position"]
    module = jitload.load_inline("copies", cpp_sources=text, functions=functions)
    assert module.sizes(torch.arange(6).view(2, 3).half()) == "3: 5 of 2"
    values = torch.tensor([0.3])
    for dtype in (torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.bfloat16, torch.int16):
        assert module.first(values.to(dtype)) == values.to(dtype).float().item()
    assert module.position(torch.tensor([7], dtype=torch.int32)) == 7
    with pytest.raises(NotImplementedError, match=r"index. not implemented for 'Float'"):
        module.position(values)
