"""Cache keys of Triton kernels: everything that changes the machine code is in them, also values from outside."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("triton")

import triton
import triton.language as tl
import triton_kernels as kernels
import triton_outer as outer
from builds import python_env
from triton_support import ADD, ARCH, VERSION, Tensor, load, since

import jitload
from jitload.triton.grid import GridScope, read_grid
from jitload.triton.kernel import CompileSpec
from jitload.triton.key import _recorded_digest, _triton_identity, grid_key, outer_values
from jitload.triton.request import make_triton_request

GRID = "ceil_div(n, BLOCK)"
LOOSE = {name: text.partition(":")[0] for name, text in ADD.items()}
NEEDS_FUNCTIONS = pytest.mark.skipif(
    not hasattr(triton, "constexpr_function"), reason="this Triton has no constexpr_function"
)


def parts(kernel: Any, *args: Any, **options: Any) -> Any:
    """Return what identifies a library."""
    arch, grid = options.pop("arch", ARCH), options.pop("grid", None)
    request = make_triton_request("m", kernel, CompileSpec.of(args, **options), arch=arch, grid=grid)
    return request.triton, request.archs


def test_everything_that_changes_the_code_changes_the_key():
    base = parts(kernels.vector_add, signature=ADD, BLOCK=64, grid=GRID)
    assert parts(kernels.vector_add, signature=dict(ADD), constexprs={"BLOCK": 64}, grid=GRID) == base
    others = [
        parts(kernels.vector_add, signature=LOOSE, BLOCK=64, grid=GRID),
        parts(kernels.vector_add, signature=ADD, BLOCK=128, grid=GRID),
        parts(kernels.vector_add, signature=ADD, BLOCK=64, grid="n"),
        parts(kernels.vector_add, signature=ADD, BLOCK=64, grid=GRID, num_warps=8),
        parts(kernels.vector_add, signature=ADD, BLOCK=64, grid=GRID, arch="sm_80"),
        parts(kernels.square_kernel, signature="*fp32, *fp32, i32", BLOCK=64, grid=GRID),
        parts(kernels.vector_add, Tensor(), Tensor(), Tensor(), 16, BLOCK=64, grid=GRID),
    ]
    assert parts(kernels.vector_add, Tensor(), Tensor(), Tensor(), 7, BLOCK=64, grid=GRID) == base
    assert all(other != base for other in others)
    assert len({str(other) for other in others}) == len(others)


def test_the_environment_of_the_compiler_is_in_the_key(monkeypatch: pytest.MonkeyPatch):
    base = parts(kernels.vector_add, signature=ADD, BLOCK=64)
    monkeypatch.setenv("TRITON_PRINT_AUTOTUNING", "1")
    assert parts(kernels.vector_add, signature=ADD, BLOCK=64) == base
    monkeypatch.setenv("DISABLE_PTXAS_OPT", "1")
    assert parts(kernels.vector_add, signature=ADD, BLOCK=64) != base
    monkeypatch.setenv("TRITON_KERNEL_OVERRIDE", "1")  # files that are not in the key decide
    first, second = (parts(kernels.vector_add, signature=ADD, BLOCK=64) for _ in range(2))
    assert first != second


MODULE = """
import triton
import triton.language as tl
import settings

LOCAL = tl.constexpr({local})

@triton.jit
def helper(x):
    return x * {factor}

@triton.jit
def kernel(x_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + offsets, helper(offsets) + LOCAL + settings.SHIFT, mask=offsets < n)
"""
# Each of the modules is loaded in a process of its own, in which the slow imports are past.
PROGRAM = """
import json, os, sys
sys.modules["torch"] = None  # it takes seconds to import
from support.imports import import_slow_modules

def answer():
    import user, jitload
    jitload.load_triton("m", user.kernel, signature={"x_ptr": "*fp32", "n": "i32"}, constexprs={"BLOCK": 64}, grid=1,
                        arch="sm_90")
    print("built" if "jitload.triton.library" in sys.modules else "found", flush=True)
    if "jitload.triton.library" not in sys.modules:
        slow = {"jitload.model", "jitload.triton.compile", "jitload.triton.metadata", "jitload.triton.wrapper",
                "jitload.cache.store", "filelock", "secrets"} & set(sys.modules)
        assert not slow, f"a hit imports {slow}"

import_slow_modules()
for user, settings in json.loads(sys.argv[1]):
    for name, text in ("user.py", user), ("settings.py", settings):
        with open(name, "w") as file:
            file.write(text)
    if not os.fork():
        answer()
        os._exit(0)
    if os.wait()[1]:
        sys.exit(1)
"""


def test_the_cache_answers_the_next_process_and_is_never_stale(tmp_path: Path):
    rows = [  # a global, a factor in a function that the kernel calls, and what it reaches through a module
        ((1, 2, 3), "built"),
        ((1, 2, 3), "found"),
        ((1, 5, 3), "built"),
        ((7, 2, 3), "built"),
        ((1, 2, 8), "built"),  # which Triton's own key leaves out
        ((1, 2, 3), "found"),
    ]
    modules = [(MODULE.format(local=local, factor=factor), f"SHIFT = {shift}\n") for (local, factor, shift), _ in rows]
    env = python_env({"JITLOAD_CACHE_DIR": str(tmp_path / "cache"), "TRITON_CACHE_DIR": str(tmp_path / "triton")})
    env["PYTHONPATH"] = os.pathsep.join((str(tmp_path), env["PYTHONPATH"], os.environ.get("PYTHONPATH", "")))
    command = [sys.executable, "-B", "-c", PROGRAM, json.dumps(modules)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [answer for _, answer in rows]
    cubins = {path.read_bytes() for path in (tmp_path / "cache").rglob("*.cubin")}
    assert len(cubins) == 4


def test_a_kernel_whose_source_cannot_be_read_is_not_cached(monkeypatch: pytest.MonkeyPatch):
    source = {"triton": triton, "tl": triton.language, "__name__": "nowhere"}
    with pytest.raises((ValueError, OSError)):  # Triton itself refuses
        exec("@triton.jit\ndef f(x_ptr):\n    pass\n", source)
    function = kernels.copy
    monkeypatch.setattr(
        type(function), "cache_key", property(lambda _: (_ for _ in ()).throw(RuntimeError("no source")))
    )
    first, second = (parts(function, signature="*fp32, *fp32", BLOCK=64)[0] for _ in range(2))
    assert first != second


def test_a_kernel_with_an_incomplete_key_is_built_for_this_process_only(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setenv("JITLOAD_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("TRITON_KERNEL_OVERRIDE", "1")
    mod = load(kernels.vector_add, name="alone", signature=ADD, BLOCK=64, grid=GRID)
    assert list(mod) == ["vector_add"]
    assert [path.name for path in tmp_path.glob("alone*")] == []


# ---- Triton itself ---------------------------------------------------------------------------------------------


def test_two_installations_of_one_triton_share_keys(tmp_path):
    """The key has no times of an installation, but a compiler that was changed afterwards has another key."""
    library, record = tmp_path / "libtriton.so", tmp_path / "RECORD"
    library.write_bytes(b"1234")
    record.write_text("triton/__init__.py,sha256=x,1\ntriton/_C/libtriton.so,sha256=abc,4\n")
    assert _recorded_digest(str(library), str(record)) == "sha256=abc"
    os.utime(library, (1, 1))
    assert _recorded_digest(str(library), str(record)) == "sha256=abc"
    library.write_bytes(b"4321")
    os.utime(record, (5, 5))
    assert _recorded_digest(str(library), str(record)) == ""  # written since
    os.utime(library, (1, 1))
    library.write_bytes(b"12345")
    assert _recorded_digest(str(library), str(record)) == ""
    assert _recorded_digest(str(library), str(tmp_path / "none")) == ""


def test_the_key_has_the_digest_of_the_wheel_s_compiler():
    identity = _triton_identity(VERSION)
    record = Path(triton.__file__).parents[1] / f"triton-{triton.__version__}.dist-info" / "RECORD"
    if not record.is_file():
        pytest.skip("this Triton was not installed from a wheel")
    assert identity[1].startswith("sha256=")


# ---- grids -----------------------------------------------------------------------------------------------------


def test_the_key_of_a_grid_needs_no_source():
    n, heads = 1000, 12
    first, same, other = (
        (lambda m: (n * heads,)),
        (lambda m: (n * heads,)),
        (lambda m: (n + heads,)),
    )
    assert grid_key(first) == grid_key(same) != grid_key(other)
    before = grid_key(first)
    heads = 13
    assert grid_key(first) != before
    assert grid_key("n") != grid_key(("n",))


def test_the_key_of_a_grid_has_all_values_that_its_expressions_use():
    wide, config, count = tl.constexpr(7), SimpleNamespace(inner=SimpleNamespace(size=3)), max
    grid = lambda m: (count(m["n"], 2) * wide, config.inner.size)  # noqa: E731
    scope = GridScope(kernel="k", arguments=("n",), constexprs=(), examples={})
    assert read_grid(grid, scope) == ("max(n, 2) * 7", "3")
    keys = {grid_key(grid)}
    wide = tl.constexpr(8)
    keys.add(grid_key(grid))
    config.inner.size = 4
    keys.add(grid_key(grid))
    count = triton.cdiv
    keys.add(grid_key(grid))
    assert read_grid(grid, scope) == ("ceil_div(n, 2) * 8", "4")
    assert len(keys) == 4
    assert grid_key(grid) in keys


# ---- values from outside ---------------------------------------------------------------------------------------


def code(kernel: Any, **constexprs: Any) -> bytes:
    return jitload.extract_triton(kernel, signature={"x_ptr": "*i32"}, constexprs=constexprs, arch=ARCH).data


def check(kernel: Any, change: Any, **constexprs: Any) -> None:
    """Check that a change changes the machine code and the key, and that compiling again does not."""
    before, key = code(kernel, **constexprs), parts(kernel, signature={"x_ptr": "*i32"}, constexprs=constexprs)
    assert code(kernel, **constexprs) == before
    change()
    assert code(kernel, **constexprs) != before
    assert parts(kernel, signature={"x_ptr": "*i32"}, constexprs=constexprs) != key


def test_a_global_of_a_function_that_is_called(monkeypatch: pytest.MonkeyPatch):
    check(outer.by_a_call, lambda: monkeypatch.setattr(outer, "CALLED", tl.constexpr(9)))


def set_default(monkeypatch: pytest.MonkeyPatch, function: triton.JITFunction, value: int) -> None:
    """Make a function what it is in another run, after CALLED was edited. Triton 3.9 reads the signature instead."""
    monkeypatch.setattr(function.fn, "__defaults__", (tl.constexpr(value),))
    monkeypatch.setattr(function, "signature", inspect.signature(function.fn))


def test_a_default_of_a_function_that_is_called(monkeypatch: pytest.MonkeyPatch):
    assert outer_values(outer.by_a_default) is not None
    check(outer.by_a_default, lambda: set_default(monkeypatch, outer.with_a_default, 9))


def test_a_function_with_a_default_that_is_a_constexpr(monkeypatch: pytest.MonkeyPatch):
    check(outer.by_a_constexpr, lambda: set_default(monkeypatch, outer.with_a_default, 9), made=outer.with_a_default)


def test_a_global_of_the_kernel_itself(monkeypatch: pytest.MonkeyPatch):
    check(outer.by_name, lambda: monkeypatch.setattr(outer, "CALLED", tl.constexpr(9)))


@NEEDS_FUNCTIONS
def test_a_list_that_a_constexpr_function_reads(monkeypatch: pytest.MonkeyPatch):
    assert outer_values(outer.by_a_constexpr_function) is not None
    check(outer.by_a_constexpr_function, lambda: monkeypatch.setattr(outer, "LISTED", [9]))


@NEEDS_FUNCTIONS
def test_a_mapping_that_a_constexpr_function_reads(monkeypatch: pytest.MonkeyPatch):
    assert outer_values(outer.by_a_mapping) is not None
    check(outer.by_a_mapping, lambda: monkeypatch.setitem(outer.MAPPED, "three", 9))


@NEEDS_FUNCTIONS
def test_an_object_that_may_hold_anything(monkeypatch: pytest.MonkeyPatch):
    assert outer_values(outer.by_an_object) is None
    first, second = (parts(outer.by_an_object, signature="*i32") for _ in range(2))
    assert first != second  # so the library is never found again
    check(outer.by_an_object, lambda: monkeypatch.setattr(outer.OBJECT, "shift", 9))


@pytest.mark.skipif(not hasattr(getattr(outer, "Pair", None), "hash_attrs"), reason="its aggregates have another form")
def test_a_default_of_the_constructor_of_an_aggregate(monkeypatch: pytest.MonkeyPatch):
    constructor = outer.Pair.hash_attrs[0].fn
    assert outer_values(outer.by_an_aggregate) is not None
    check(outer.by_an_aggregate, lambda: monkeypatch.setattr(constructor, "__defaults__", (tl.constexpr(9),)))


@NEEDS_FUNCTIONS
def test_a_constexpr_function_that_uses_such_an_object():
    first, second = (
        parts(outer.by_a_constexpr, signature={"x_ptr": "*i32"}, constexprs={"made": outer.with_an_object})
        for _ in range(2)
    )
    assert first != second  # so the library is never found again


def test_a_str_is_not_the_number_that_it_spells():
    assert code(outer.compare_constant, value=3) != code(outer.compare_constant, value="3")
    assert code(outer.compare_constant, value="None") != code(outer.compare_constant, value=None)
    assert code(outer.compare_constant, value="True") != code(outer.compare_constant, value=True)


def test_a_global_of_a_function_that_is_a_constexpr(monkeypatch: pytest.MonkeyPatch):
    check(
        outer.by_a_constexpr,
        lambda: monkeypatch.setattr(outer, "CALLED", tl.constexpr(9)),
        made=outer.helper,
    )


@since(3, 4)
def test_a_constexpr_whose_text_does_not_change(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(outer.Anything, "__repr__", lambda _: "Anything()")
    made = outer.Anything()
    made.shift = tl.constexpr(3)
    check(outer.by_a_member, lambda: setattr(made, "shift", tl.constexpr(9)), made=made)


def test_values_that_contain_themselves():
    loop: list[Any] = []
    loop.append(loop)
    scope = {"loop": loop, "__name__": "somewhere"}
    exec("def f():\n    return loop", scope)
    assert outer_values(scope["f"]) is None
