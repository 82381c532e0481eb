"""What the light headers lack is remembered in the cache, so that only one process tries a text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import jitload
from jitload import cpp_extension
from jitload.building.runtime import find_or_build_objects
from jitload.errors import CompileError
from jitload.host_cpp import library

NEEDS_TORCH = "torch::Tensor f(torch::Tensor x) { return torch::nn::functional::%s(x); }"


def fallbacks(monkeypatch: pytest.MonkeyPatch, name: str, text: str, **arguments: Any) -> tuple[list[str], list[int]]:
    """Build a text twice; return why each was left to torch, and how many runs of ninja each needed."""
    reasons: list[str] = []
    runs = [0]
    run = library._run
    monkeypatch.setattr(
        cpp_extension, "_build_with_torch", lambda _function, _arguments, reason: reasons.append(reason)
    )
    monkeypatch.setattr(library, "_run", lambda *call: (runs.append(runs.pop() + 1), run(*call)))
    for _ in range(2):
        cpp_extension.load_inline(name, text, functions=["f"], **arguments)
        runs.append(0)
    return reasons, runs[:2]


def find_objects(names: Any, compiler: Any, cache_dir: Path, settings: Any) -> tuple[Path, ...]:
    """Find the object files that all texts share, which take seconds to build, in the mode `rebuild`, too."""
    return find_or_build_objects(names, compiler, cache_dir, settings._replace(mode="auto"))


def test_what_the_headers_lack_is_remembered(monkeypatch: pytest.MonkeyPatch):
    reasons, runs = fallbacks(monkeypatch, "lacking", NEEDS_TORCH % "relu")
    assert reasons == ["missing: torch::nn"] * 2
    assert runs == [1, 0]
    with pytest.raises(CompileError) as caught:
        jitload.load_inline("lacking", cpp_sources=NEEDS_TORCH % "relu", functions=["f"])
    assert "These are names of torch's that jitload's headers do not have" in str(caught.value)
    assert caught.value.diagnostics[0].line == 1
    monkeypatch.setenv("JITLOAD_MODE", "rebuild")
    monkeypatch.setattr(library, "find_or_build_objects", find_objects)
    assert fallbacks(monkeypatch, "lacking", NEEDS_TORCH % "relu") == (["missing: torch::nn"] * 2, [1, 1])


def test_what_a_header_of_the_user_lacks_is_not_remembered(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    (tmp_path / "own.h").write_text(NEEDS_TORCH % "gelu")
    include = {"extra_include_paths": [str(tmp_path)]}
    reasons, runs = fallbacks(monkeypatch, "lacking_header", "#include <own.h>", **include)
    assert reasons == ["missing: torch::nn"] * 2
    assert runs == [1, 1]
    (tmp_path / "own.h").write_text("torch::Tensor f(torch::Tensor x) { return x + 1; }")
    module = cpp_extension.load_inline("lacking_header", "#include <own.h>", functions=["f"], **include)
    assert module.f(torch.ones(1)) == 2
