"""PyTorch extensions built with the light headers: results, errors, conversions, CUDA, and what the headers lack."""

import logging
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import jitload
from jitload import cpp_extension
from jitload.errors import CompileError, ToolchainError

CHECKS = r"""
torch::Tensor f(torch::Tensor x, int64_t n, double a, bool b, std::string s, std::optional<torch::Tensor> o, std::vector<int64_t> v) {
  if (a == 9) TORCH_WARN("warned ", n);
  return x;
}
"""
ONCE = "int f(int x) { return x; }"
BINDINGS = """
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.doc() = "about";
  m.def("f", &f, "doc of f", py::arg("x"), py::arg("n") = 4, py::arg("a") = 0.0, py::arg("b") = false, py::arg("s") = "hi",
        py::arg("o") = py::none(), py::arg("v") = std::vector<int64_t>{1, 2});
  m.def("twice", [](int x) { return 2 * x; });
  m.def("twice", [](const std::string& x) { return x + x; });
  m.attr("VERSION") = 3;
}
"""
TYPES = (
    "torch.Tensor", "typing.SupportsInt | typing.SupportsIndex", "typing.SupportsFloat | typing.SupportsIndex", "bool",
    "str", "torch.Tensor | None", "collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex]",
)  # fmt: skip


# ---- errors ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def checks() -> ModuleType:
    return cpp_extension.load_inline("checks", CHECKS, functions=["f"])


@pytest.fixture(scope="module")
def bound() -> ModuleType:
    return cpp_extension.load_inline("bound", CHECKS + BINDINGS)


def test_a_warning_is_pythons(checks: ModuleType):
    with pytest.warns(UserWarning, match=r"warned 4 \(Triggered internally at checks.cpp:3.\)"):
        checks.f(torch.ones(2, 3), 4, 9, False, "s", None, [1])
    with pytest.raises(UserWarning, match="warned 4"):  # pytest makes warnings errors
        checks.f(torch.ones(2, 3), 4, 9, False, "s", None, [1])


def test_arguments_that_do_not_fit_list_the_signatures(checks: ModuleType, bound: ModuleType):
    parameters = ", ".join(f"arg{number}: {type_}" for number, type_ in enumerate(TYPES))
    message = (
        "f(): incompatible function arguments. The following argument types are supported:\n"
        f"    1. ({parameters}) -> torch.Tensor\n\nInvoked with: 3, 4.5"
    )
    with pytest.raises(TypeError) as caught:
        checks.f(3, 4.5)
    assert str(caught.value) == message
    with pytest.raises(TypeError, match=r"Invoked with: tensor\(1\.\); kwargs: z=\[3\]$"):
        bound.f(torch.tensor(1.0), z=[3])


def test_parameters_take_and_refuse_what_those_of_pybind11_do(checks: ModuleType):
    x = torch.ones(2, 3)
    for numbers in ((torch.tensor(4), torch.tensor(0.0), None, b"s"), (4, 0, 1, "s")):
        assert checks.f(x, *numbers, x, (1, 2)) is x
        assert checks.f(x, *numbers, None, range(2)) is x
    parameter = torch.nn.Parameter(x)
    assert checks.f(parameter, 4, 0.0, False, "s", parameter, []) is parameter
    refused = [(x, n) for n in (4.5, "4", None, 2**63, [4])] + [(y, 4) for y in (None, [[1.0]], x.numpy())]
    for arguments in refused:
        with pytest.raises(TypeError, match="incompatible function arguments"):
            checks.f(*arguments, 0.0, False, "s", None, [1])


def test_keywords_defaults_overloads_docs_and_attributes(bound: ModuleType):
    x = torch.ones(2, 3)
    assert bound.f(x) is x
    assert bound.f(x=x, v=[3], n=2) is x
    assert (bound.twice(3), bound.twice("ab"), bound.VERSION, bound.__doc__) == (6, "abab", 3, "about")
    assert bound.f.__name__ == "f"
    assert bound.f.__doc__.startswith("f(x: torch.Tensor, n: typing.SupportsInt | typing.SupportsIndex = 4, ")
    assert bound.f.__doc__.endswith(" = [1, 2]) -> torch.Tensor\n\ndoc of f\n")
    with pytest.raises(TypeError, match="incompatible function arguments"):
        bound.f(x, x=x)


# ---- the functions of torch --------------------------------------------------------------------------------------


def test_load_inline_and_load_of_jitload_take_the_texts_too(tmp_path: Path):
    text = "torch::Tensor twice(torch::Tensor x) { return x * 2; }"
    module = jitload.load_inline("twice", cpp_sources=text, functions=["twice"])
    assert torch.equal(module.twice(torch.ones(2)), torch.full((2,), 2.0))
    assert "twice" in module
    assert list(module) == ["twice"]
    (tmp_path / "factor.h").write_text("inline at::Tensor scale(at::Tensor x) { return x.mul(FACTOR); }\n")
    binding = 'PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("scale", &scale); }'
    (tmp_path / "scale.cpp").write_text(f'#include <torch/extension.h>\n#include "factor.h"\n{binding}\n')
    loaded = cpp_extension.load("scale", [str(tmp_path / "scale.cpp")], extra_cflags=["-DFACTOR=3"])
    assert torch.equal(loaded.scale(torch.ones(2)), torch.full((2,), 3.0))
    loaded = jitload.load("scale", sources=tmp_path / "scale.cpp", extra_cflags=["-DFACTOR=4"])
    assert torch.equal(loaded.scale(torch.ones(2)), torch.full((2,), 4.0))


def test_names_that_are_no_identifiers_namespaces_and_arguments_without_meaning_are_accepted():
    text = "using namespace torch; using namespace at; using namespace std; int f(int x) { return max(x, 2); }"
    module = cpp_extension.load_inline(
        "1x a-b/naïve", [text], "", functions={"f": "doc"}, extra_cflags=[""], extra_ldflags=[""],
        build_directory="/tmp/x", use_pch=True, with_cuda=True, verbose=False,
    )  # fmt: skip
    assert module.f(3) == 3
    assert module.f.__doc__.endswith(") -> int\n\ndoc\n")
    bound = cpp_extension.load_inline("odd", f'{text}\nPYBIND11_MODULE(other, m) {{ m.def("f", &f); }}')
    assert bound.f(1) == 2


@pytest.mark.parametrize(
    ("sources", "functions", "message"),
    [
        (None, ["f"], "module 'odd' has no source"),
        (f"{ONCE}\0", ["f"], "cpp_sources contains a NUL character"),
        (ONCE, ["f;"], "functions= has 'f;', which is not the name"),
        (ONCE, 3, "functions must be a list or dict of"),
        (ONCE, [], "has no PYBIND11_MODULE: list the functions to export"),
        (ONCE, ["f", "g"], r"functions\['g'\]:1: ‘g’ was not declared(?s:.*)\nfunctions= names 'g', which the C\+\+ does not"),
        ("int f(int x) { return x }", ["f"], "odd.cpp:1: expected ‘;’ before ‘}’"),
        (["int y;", f"{ONCE}\nint z = undeclared;"], ["f"], r"cpp_sources\[1\]:2: ‘undeclared’ was not declared"),
        (f'#include "nope.h"\n{ONCE}', ["f"], "odd.cpp:1: nope.h: No such file"),
        ("int h(int);\nint f(int x) { return h(x); }", ["f"], r"odd.so needs h\(int\)"),
        (f'{ONCE}\nPYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {{ m.def("f", &f); }}', ["f"], r"(?m)leave functions= out, and add the functions there\.$"),
        (f'{ONCE}\nPYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {{ throw std::runtime_error("in it"); }}', None, "^in it$"),
    ],
)  # fmt: skip
def test_texts_that_cannot_be_built_end_in_one_clear_error(sources: Any, functions: Any, message: str):
    with pytest.raises(RuntimeError, match=message):
        cpp_extension.load_inline("odd", sources, functions=functions)


@pytest.fixture
def torchs_own(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The arguments with which torch's own functions are called, which do nothing."""
    import torch.utils.cpp_extension as original

    calls: list[dict[str, Any]] = []

    def build(name: str, **arguments: Any) -> str:
        calls.append(arguments)
        return "built by torch"

    monkeypatch.setattr(original, "load_inline", build)
    monkeypatch.setattr(original, "load", build)
    return calls


LACKING = "torch::Tensor g(torch::Tensor x) { return torch::nn::functional::relu(x); }"
LACKING_TYPES = "void h(std::optional<at::Generator> g, at::OptionalIntArrayRef dim) { py::dict()[0] = py::cast(3); }"


def test_what_the_headers_lack_is_built_by_torch(torchs_own: list[dict[str, Any]], caplog: pytest.LogCaptureFixture):
    texts = [LACKING, LACKING_TYPES, "using namespace torch::autograd; struct S : Function<S> {};"]
    with caplog.at_level(logging.INFO, logger="jitload.cpp_extension"):
        assert cpp_extension.load_inline("lacking", texts, functions=["g", "h"]) == "built by torch"
    torchs_own[0]["cpp_sources"].append("torch extends the list")
    assert (len(texts), torchs_own[0]["functions"]) == (3, ["g", "h"])
    assert all(name in caplog.text for name in ("autograd", "Generator", "OptionalIntArrayRef", "object::operator="))
    assert "torch builds 'lacking' with its own headers, which takes about a minute (missing: torch::nn" in caplog.text
    with pytest.raises(CompileError, match="These are names of torch's that jitload's headers do not have") as caught:
        jitload.load_inline("lacking", cpp_sources=LACKING, functions=["g"])
    assert caught.value.diagnostics[0].line == 1


@pytest.mark.parametrize(
    ("function", "arguments", "reason"),
    [
        ("load_inline", {"cpp_sources": "", "sycl_sources": "void f();"}, "sycl_sources"),
        ("load", {"sources": ["m.cpp"], "is_python_module": False, "is_standalone": True}, "is_standalone=True"),
    ],
)
def test_what_is_torchs_alone_is_named(
    function: str, arguments: Any, reason: str, torchs_own: list[dict[str, Any]], caplog: pytest.LogCaptureFixture
):
    with caplog.at_level(logging.INFO, logger="jitload.cpp_extension"):
        assert getattr(cpp_extension, function)("m", **arguments) == "built by torch"
    assert f"torch builds 'm' with its own headers, which takes about a minute ({reason})" in caplog.text
    assert arguments.items() <= torchs_own[0].items()


def test_the_error_of_torchs_build_is_the_only_one(monkeypatch: pytest.MonkeyPatch):
    import torch.utils.cpp_extension as original

    def fail(**_: Any) -> None:
        raise RuntimeError("Error building extension 'lacking'")

    monkeypatch.setattr(original, "load_inline", fail)
    with pytest.raises(RuntimeError, match=r"^Error building extension 'lacking'$") as caught:
        cpp_extension.load_inline("lacking", LACKING, functions=["g"])
    assert (caught.value.__context__, caught.value.__cause__) == (None, None)


def test_a_torch_for_the_cpu_cannot_build_what_needs_cuda(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(cpp_extension, "_build_with_torch", lambda *call: "built")
    text = "bool g() { return torch::cuda::is_available(); }"
    assert cpp_extension.load_inline("any", text, functions=["g"]) == "built"
    with pytest.raises(CompileError, match=r"lack ATen/cuda/CUDAGraph\.h\. torch's own headers .* built for the CPU"):
        cpp_extension.load_inline("events", "#include <ATen/cuda/CUDAGraph.h>\nvoid g() {}", functions=["g"])


def test_install_replaces_two_functions_until_the_last_block_ends():
    import torch.utils.cpp_extension as module

    original, others = module.load_inline, {name: value for name, value in vars(module).items() if "load" not in name}
    with cpp_extension.install():
        with cpp_extension.install():
            assert (module.load_inline, module.load) == (cpp_extension.load_inline, cpp_extension.load)
        assert module.load_inline is cpp_extension.load_inline
        assert {name: vars(module)[name] for name in others} == others  # BuildExtension, CUDAExtension and so on
    assert module.load_inline is original


def without_torch(tmp_path: Path) -> dict[str, str]:
    """Return an environment with a package in place of torch, which takes seconds to import."""
    module = tmp_path / "torch" / "utils" / "cpp_extension.py"
    module.parent.mkdir(parents=True)
    module.write_text("def load(): ...\ndef load_inline(): ...\nclass CUDAExtension: ...\n")
    for package in module.parents[:2]:
        (package / "__init__.py").touch()
    search = os.pathsep.join([str(tmp_path), str(Path(jitload.__file__).parents[1])])
    return {**os.environ, "PYTHONPATH": search}


def test_a_program_runs_unchanged(tmp_path: Path):
    """Also if it looks for the module first, and if a static variable of its text holds a tensor when Python has ended."""
    program = tmp_path / "program.py"
    program.write_text(
        "import importlib.util, sys, torch\nassert importlib.util.find_spec('torch.utils.cpp_extension')\n"
        "from torch.utils.cpp_extension import CUDAExtension, load_inline\n"
        "text = 'torch::Tensor keep(torch::Tensor x) { static torch::Tensor kept; kept = x * 2; return kept; }'\n"
        "print(load_inline('keep', [text], functions=['keep']).keep(torch.ones(1)).item(), load_inline.__module__, sys.argv[1:])\n"
        "print(CUDAExtension.__module__)\n"
    )
    command = [sys.executable, "-m", "jitload.cpp_extension", str(program), "argument"]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert result.stdout == "2.0 jitload.cpp_extension ['argument']\ntorch.utils.cpp_extension\n"


def test_threads_call_functions_that_release_the_gil():
    text = """
    torch::Tensor work(torch::Tensor x) { return x.cumsum(0).mul_(2); }
    PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("work", &work, py::call_guard<py::gil_scoped_release>()); }"""
    work, x = cpp_extension.load_inline("work", text).work, torch.ones(3)
    with ThreadPoolExecutor(8) as pool:
        assert all(result.tolist() == [2, 4, 6] for result in pool.map(work, [x] * 300))


def test_an_environment_variable_installs_the_functions(tmp_path: Path):
    environment = without_torch(tmp_path)
    add = "import os, site, sys; site.addsitedir(os.path.dirname(sys.argv[1]))\n"
    for value, code, printed in (
        ("ON", "from torch.utils.cpp_extension import load; print(load.__module__)", "jitload.cpp_extension"),
        ("0", "print('jitload' in sys.modules, sys.meta_path == before)", "False True"),
    ):
        result = subprocess.run(
            [sys.executable, "-c", f"import sys; before = [*sys.meta_path]\n{add}{code}", jitload.__file__],
            env={**environment, "JITLOAD_TORCH": value}, capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert result.stdout == f"{printed}\n"


needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc, and there is none on the PATH")


@needs_nvcc
def test_without_a_gpu_a_text_with_kernels_needs_an_architecture(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("jitload.toolchain.arch.current_capability", lambda: None)
    monkeypatch.delenv("JITLOAD_ARCH", raising=False)
    kernel = "__global__ void k() {} torch::Tensor f(torch::Tensor x) { k<<<1, 1>>>(); return x; }"

    def load_kernel(**options: Any) -> Any:
        declaration = "torch::Tensor f(torch::Tensor);"
        return cpp_extension.load_inline("native", declaration, kernel, functions=["f"], **options)

    with pytest.raises(ToolchainError, match=r"Set JITLOAD_ARCH=sm_90a, or pass extra_cuda_cflags=\['-arch=sm_90a'\]"):
        load_kernel()
    monkeypatch.setenv("JITLOAD_ARCH", "cpu")
    with pytest.raises(ToolchainError, match=r"only for GPUs, not for 'cpu'\. Set JITLOAD_ARCH=sm_90a, or pass extra_"):
        load_kernel()
    monkeypatch.delenv("JITLOAD_ARCH")
    assert load_kernel(extra_cuda_cflags=["-arch=sm_90a"]).f


@needs_nvcc
def test_an_error_in_a_text_with_kernels_is_at_its_line(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("JITLOAD_ARCH", "sm_90a")
    kernel = "__global__ void k(float* x) { *x = 1; }"
    host = "torch::Tensor f(torch::Tensor x) {\n  k<<<1, 1>>>(x.data_ptr<float>(), 3);\n  return x;\n}"
    with pytest.raises(CompileError, match=r"cuda_sources\[1\]:2: too many arguments") as caught:
        cpp_extension.load_inline("wrong", "torch::Tensor f(torch::Tensor x);", [kernel, host], functions=["f"])
    assert [(each.file, each.line) for each in caught.value.diagnostics] == [("cuda_sources[1]", 2)]


@needs_nvcc
def test_an_error_of_cuda_can_be_a_warning_or_ignored():
    text = """
    #include <c10/cuda/CUDAException.h>
    bool set_device(bool warns) {
      if (warns) C10_CUDA_CHECK_WARN(cudaSetDevice(1000));
      if (!warns) C10_CUDA_IGNORE_ERROR(cudaSetDevice(1000));
      return cudaPeekAtLastError() == cudaSuccess;
    }"""
    module = cpp_extension.load_inline("warned", text, functions=["set_device"])
    with pytest.warns(UserWarning, match="CUDA warning: "):
        results = [module.set_device(True)]
    results.append(module.set_device(False))
    assert all(results) or not torch.cuda.is_available()  # without a GPU, CUDA's error stays


RELU = r"""
#include <ATen/cuda/CUDAContext.h>
__global__ void relu_kernel(const float* x, float* y, int64_t n) {
  for (int64_t i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += blockDim.x * gridDim.x) y[i] = fmaxf(x[i], 0);
}
torch::Tensor relu(torch::Tensor x) {
  auto y = torch::empty_like(x);
  const int blocks = (x.numel() + 127) / 128;
  relu_kernel<<<blocks, 128, 0, at::cuda::getCurrentCUDAStream()>>>(x.data_ptr<float>(), y.data_ptr<float>(), x.numel());
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return y;
}
"""


@pytest.mark.gpu
@pytest.mark.usefixtures("gpu")
def test_kernels_run_on_the_current_stream_and_a_failed_launch_is_reported():
    relu = cpp_extension.load_inline("relu", "torch::Tensor relu(torch::Tensor x);", RELU, functions=["relu"]).relu
    stream = torch.cuda.Stream()
    x = torch.randn(1 << 20, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        relu(x)  # CUDA loads the kernel, and torch allocates memory for the stream: either may wait for the GPU
        stream.synchronize()
        torch.cuda._sleep(1_000_000_000)  # half a second
        y = relu(x)
    assert not stream.query()
    stream.synchronize()
    torch.testing.assert_close(y, torch.relu(x))
    with pytest.raises(RuntimeError, match=r"CUDA error: invalid (configuration )?argument"):
        relu(torch.empty(0, device="cuda"))


LIBRARIES = """
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>
#include <cublas_v2.h>
#include <curand_kernel.h>
#include <cusparse.h>

torch::Tensor product(torch::Tensor a, torch::Tensor b) {
  int m = a.size(0), k = a.size(1), n = b.size(1);
  torch::Tensor c = torch::empty({m, n}, a.options());
  const float one = 1, zero = 0;
  cublasHandle_t handle = at::cuda::getCurrentCUDABlasHandle();
  TORCH_CUDABLAS_CHECK(cublasSgemm(handle, CUBLAS_OP_N, CUBLAS_OP_N, n, m, k, &one, b.data_ptr<float>(), n,
                                   a.data_ptr<float>(), k, &zero, c.data_ptr<float>(), n));
  return c;
}
std::vector<int64_t> have_the_stream() {
  cudaStream_t current = at::cuda::getCurrentCUDAStream(), blas = nullptr, sparse = nullptr;
  TORCH_CUDABLAS_CHECK(cublasGetStream(at::cuda::getCurrentCUDABlasHandle(), &blas));
  TORCH_CUDASPARSE_CHECK(cusparseGetStream(at::cuda::getCurrentCUDASparseHandle(), &sparse));
  return {blas == current, sparse == current, at::cuda::getCurrentCUDABlasLtHandle() != nullptr,
          at::cuda::getCurrentCUDASolverDnHandle() != nullptr};
}
__global__ void fill(float* x, int n) {
  curandStatePhilox4_32_10_t state;
  curand_init(1, threadIdx.x, 0, &state);
  if (threadIdx.x < n) x[threadIdx.x] = curand_uniform(&state);
}
void noise(torch::Tensor x) { fill<<<1, 32>>>(x.data_ptr<float>(), x.numel()); }
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("product", &product);
  m.def("have_the_stream", &have_the_stream);
  m.def("noise", &noise);
}
"""


@pytest.mark.gpu
@pytest.mark.usefixtures("gpu")
def test_texts_call_the_libraries_that_torch_has_loaded():
    module = cpp_extension.load_inline("libraries", [""], [LIBRARIES], extra_ldflags=["-lcublas", "-lcusparse"])
    a, b, x = torch.randn(5, 7, device="cuda"), torch.randn(7, 3, device="cuda"), torch.zeros(32, device="cuda")
    with torch.cuda.stream(torch.cuda.Stream()):
        assert module.have_the_stream() == [1] * 4
    torch.testing.assert_close(module.product(a, b), a @ b)
    module.noise(x)
    assert len(x.unique()) == 32
    loaded = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "/libcublas.so" in line}
    assert len(loaded) == 1  # torch's copy
