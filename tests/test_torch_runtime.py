"""The part of texts for torch that calls Python: references, threads, modes, and tensors of unusual kinds."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from jitload import cpp_extension

TEXT = r"""
#include <thread>
torch::Tensor add(torch::Tensor a, torch::Tensor b) { return a + b; }
torch::Tensor same(torch::Tensor a) { return a; }
torch::Tensor parts(torch::Tensor a) { return torch::stack(a.unbind(0)).sum(); }
std::vector<torch::Tensor> many(std::vector<torch::Tensor> xs, std::optional<torch::Tensor> o) {
  if (o) xs.push_back(*o);
  return xs;
}
std::map<std::string, torch::Tensor> named(torch::Tensor x) { return {{"a", x}, {"b", x + 1}}; }
void fail(torch::Tensor a) { TORCH_CHECK(false, "no ", a.sizes()); }
void fail_in_operator(torch::Tensor a) { torch::matmul(a, torch::ones({7, 7})); }
bool catch_operator(torch::Tensor a) {
  try {
    torch::matmul(a, torch::ones({7, 7}));
  } catch (const c10::Error&) {
    return true;
  }
  return false;
}
torch::Tensor on_thread(torch::Tensor a) {
  torch::Tensor result;
  py::gil_scoped_release release;
  std::thread thread([&] { result = a * 2; });
  thread.join();
  return result;
}
torch::Tensor blob(int64_t n) {
  return torch::from_blob(new float[n], {n}, [](void* memory) { delete[] static_cast<float*>(memory); });
}
torch::Tensor inferred(torch::Tensor x) {
  c10::InferenceMode guard;
  return x * 2;
}
float first(torch::Tensor x) { return x.data_ptr<float>()[0]; }
std::string facts(torch::Tensor x) { return c10::str(x.sizes(), " ", x.device(), " ", x.dtype()); }
"""
FUNCTIONS = [
    "add",
    "same",
    "parts",
    "many",
    "named",
    "fail",
    "fail_in_operator",
    "catch_operator",
    "on_thread",
    "blob",
    "inferred",
    "first",
    "facts",
]


@pytest.fixture(scope="module")
def module() -> ModuleType:
    return cpp_extension.load_inline("runtime", TEXT, functions=FUNCTIONS)


def ignore_errors(function: Callable[..., Any], *arguments: Any) -> None:
    try:
        function(*arguments)
    except (RuntimeError, TypeError):
        return
    pytest.fail("no error")


CALLS: dict[str, Callable[[ModuleType, Any], Any]] = {
    "results": lambda m, x: m.add(x, x),
    "same": lambda m, x: m.same(x),
    "items": lambda m, x: m.parts(x),
    "lists": lambda m, x: m.many([x, x], x),
    "dicts": lambda m, x: m.named(x),
    "checks": lambda m, x: ignore_errors(m.fail, x),
    "errors of operators": lambda m, x: ignore_errors(m.fail_in_operator, x),
    "caught errors": lambda m, x: m.catch_operator(x),
    "arguments that do not fit": lambda m, x: ignore_errors(m.many, [x, None], x),
    "memory of the text": lambda m, _: m.blob(1 << 16),
    "guards": lambda m, x: m.inferred(x),
}


@pytest.mark.parametrize("name", CALLS)
def test_calls_keep_no_references_and_no_memory(module: ModuleType, name: str):
    x = torch.ones(3, 3)
    function = CALLS[name]
    for _ in range(50):
        function(module, x)
    gc.collect()
    references, objects, before = sys.getrefcount(x), len(gc.get_objects()), resident_kilobytes()
    for _ in range(1000):
        function(module, x)
    gc.collect()
    assert sys.getrefcount(x) == references
    assert len(gc.get_objects()) < objects + 100
    assert resident_kilobytes() < before + 8000  # 1,000 tensors of `blob` have 256 MB


def resident_kilobytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4


def test_operators_run_on_other_threads_and_without_the_gil(module: ModuleType):
    assert torch.equal(module.on_thread(torch.ones(3)), torch.full((3,), 2.0))
    failures: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(300):
                assert torch.equal(module.on_thread(torch.ones(2)), torch.full((2,), 2.0))
                with pytest.raises(RuntimeError, match=r"^no \[2\]$"):
                    module.fail(torch.ones(2))
        except BaseException as error:  # noqa: BLE001  the main thread reports it
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_subclasses_and_parameters(module: ModuleType):
    class Special(torch.Tensor):
        pass

    x = torch.ones(2).as_subclass(Special)
    assert type(module.add(x, x)) is Special
    assert module.same(x) is x
    weights = torch.nn.Parameter(torch.ones(2))
    assert module.add(weights, weights).requires_grad
    assert module.first(weights) == 1


def test_modes_and_transforms(module: ModuleType):
    x = torch.ones(2, 3)
    assert module.inferred(x).is_inference()
    with torch.no_grad():
        assert not module.add(x.requires_grad_(), x).requires_grad
    with torch.inference_mode():
        assert module.add(x, x).is_inference()
    x = torch.ones(2, 3)
    assert torch.equal(torch.vmap(lambda row: module.add(row, row))(x), x + x)
    assert torch.equal(torch.func.grad(lambda y: module.parts(module.add(y, y)))(x), torch.full((2, 3), 2.0))
    with pytest.raises(RuntimeError, match="Cannot access data pointer of Tensor that doesn't have storage"):
        torch.func.grad(lambda y: module.parts(y) * module.first(y))(x)


def test_tensors_without_memory_have_sizes(module: ModuleType):
    assert module.facts(torch.empty(3, 2, device="meta", dtype=torch.float64)) == "[3, 2] meta double"
    assert module.add(torch.empty(3, device="meta"), torch.empty(3, device="meta")).device.type == "meta"
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        fake = torch.ones(4, 2)
    assert module.facts(fake) == "[4, 2] cpu float"
