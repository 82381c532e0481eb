"""Cache keys of Triton kernels: everything that changes the machine code is in them, also values from outside."""

import inspect
import json
import os
import subprocess
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("triton")

import triton
import triton.language as tl
import triton_kernels as kernels
import triton_outer as outer
from builds import python_env
from triton_support import ADD, ARCH, Tensor, load

import jitload
from jitload.triton.kernel import CompileSpec
from jitload.triton.key import _recorded_digest
from jitload.triton.request import make_triton_request

GRID = "ceil_div(n, BLOCK)"
LOOSE = {name: text.partition(":")[0] for name, text in ADD.items()}


def parts(kernel: Any, *args: Any, **options: Any) -> Any:
    """Return what identifies a library."""
    arch, grid = options.pop("arch", ARCH), options.pop("grid", None)
    request = make_triton_request("m", kernel, CompileSpec.of(args, **options), arch=arch, grid=grid)
    return request.triton, request.archs


def test_everything_that_changes_the_code_changes_the_key():
    base = parts(kernels.vector_add, signature=ADD, BLOCK=64, grid=GRID)
    assert parts(kernels.vector_add, signature=dict(ADD), constexprs={"BLOCK": 64}, grid=GRID) == base
    different = [
        parts(kernels.vector_add, signature=LOOSE, BLOCK=64, grid=GRID),
        parts(kernels.vector_add, signature=ADD, BLOCK=128, grid=GRID),
        parts(kernels.vector_add, signature=ADD, BLOCK=64, grid="n"),
        parts(kernels.vector_add, signature=ADD, BLOCK=64, grid=GRID, num_warps=8),
        parts(kernels.vector_add, signature=ADD, BLOCK=64, grid=GRID, arch="sm_80"),
        parts(kernels.square_kernel, signature="*fp32, *fp32, i32", BLOCK=64, grid=GRID),
        parts(kernels.vector_add, Tensor(), Tensor(), Tensor(), 16, BLOCK=64, grid=GRID),
    ]
    assert parts(kernels.vector_add, Tensor(), Tensor(), Tensor(), 7, BLOCK=64, grid=GRID) == base
    assert all(changed != base for changed in different)
    assert len({str(changed) for changed in different}) == len(different)


def test_the_environment_of_the_compiler_is_in_the_key(monkeypatch):
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
import gc, json, os, sys
sys.modules["torch"] = None  # it takes seconds to import
from support.imports import import_slow_modules

def answer():
    import user, jitload
    gc.unfreeze()  # what import_slow_modules has frozen
    gc.collect()
    whole = []
    gc.callbacks.append(lambda *_: None if gc.get_freeze_count() else whole.append(1))
    jitload.load_triton("m", user.kernel, signature={"x_ptr": "*fp32", "n": "i32"}, constexprs={"BLOCK": 64}, grid=1,
                        arch="sm_90")
    print("built" if "jitload.triton.compile" in sys.modules else "found", flush=True)
    if "jitload.triton.compile" not in sys.modules:
        slow = {"jitload.model", "jitload.triton.compile", "jitload.triton.metadata", "jitload.triton.wrapper",
                "jitload.triton.variants", "jitload.sources.device", "jitload.cache.store", "filelock",
                "secrets"} & set(sys.modules)
        assert not slow, f"a hit imports {slow}"
        assert not whole, "a collection during a hit includes the objects that were there before"

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


def test_the_cache_answers_the_next_process_and_is_never_stale(tmp_path):
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


def test_a_kernel_with_an_incomplete_key_is_built_for_this_process_only(monkeypatch, tmp_path):
    monkeypatch.setenv("JITLOAD_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("TRITON_KERNEL_OVERRIDE", "1")
    mod = load(kernels.vector_add, name="alone", signature=ADD, BLOCK=64, grid=GRID)
    assert list(mod) == ["vector_add"]
    assert [path.name for path in tmp_path.glob("alone*")] == []


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


def test_the_key_of_a_grid_has_the_expressions_that_it_becomes():
    def of(grid: Any) -> Any:
        return parts(kernels.vector_add, signature=ADD, BLOCK=64, grid=grid)

    wide, config, count = tl.constexpr(7), SimpleNamespace(inner=SimpleNamespace(size=3)), max
    grid = lambda m: (count(m["n"], 2) * wide, config.inner.size)  # noqa: E731
    assert of(grid) == of(("max(n, 2) * 7", "3")) == of(["max(n, 2) * 7", "3"]) != of(("max(n, 2) * 8", "3"))
    wide = tl.constexpr(8)
    config.inner.size = 4
    count = triton.cdiv
    assert of(grid) == of(("ceil_div(n, 2) * 8", "4"))
    assert of("n") != of(("n",))


# ---- values from outside ---------------------------------------------------------------------------------------


def code(kernel: Any, **constexprs: Any) -> bytes:
    return jitload.extract_triton(kernel, signature={"x_ptr": "*i32"}, constexprs=constexprs, arch=ARCH).data


def outer_parts(kernel: Any, **constexprs: Any) -> Any:
    return parts(kernel, signature={"x_ptr": "*i32"}, constexprs=constexprs)


def set_default(patch: pytest.MonkeyPatch) -> None:
    """Make a function what it is in another run, after CALLED was edited. Triton 3.9 reads the signature instead."""
    function = outer.with_a_default
    patch.setattr(function.fn, "__defaults__", (tl.constexpr(9),))
    patch.setattr(function, "signature", inspect.signature(function.fn))


def set_called(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(outer, "CALLED", tl.constexpr(9))


def set_default_of_aggregate(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(outer.Pair.hash_attrs[0].fn, "__defaults__", (tl.constexpr(9),))


def set_setting(name: str) -> Callable[[pytest.MonkeyPatch], None]:
    return lambda patch: patch.setattr(outer.settings, name, tl.constexpr(9))


OUTER = [
    pytest.param("by_a_call", set_called, {}, id="a global of a function that is called"),
    pytest.param("by_a_default", set_default, {}, id="a default of a function that is called"),
    pytest.param("by_a_constexpr", set_called, {"made": outer.helper}, id="a global of a constexpr function"),
    pytest.param("by_a_constexpr", set_default, {"made": outer.with_a_default}, id="a default of a constexpr function"),
    *(pytest.param("by_members", set_setting(name), {}, id=f"by_members {name}") for name in ("SHIFT", "SCALE")),
    pytest.param("by_a_constexpr_function", lambda patch: patch.setitem(outer.LISTED[0], "three", 9), {},
                 id="a mapping in a list"),
    pytest.param("by_an_object", lambda patch: patch.setattr(outer.OBJECT, "shift", 9), {},
                 id="an object that may hold anything"),
    pytest.param("by_an_aggregate", set_default_of_aggregate, {}, id="a default of the constructor of an aggregate",
                 marks=pytest.mark.skipif(not hasattr(getattr(outer, "Pair", None), "hash_attrs"),
                                          reason="its aggregates have another form")),
]  # fmt: skip


@pytest.mark.parametrize(("kernel", "change", "constexprs"), OUTER)
def test_a_value_from_outside_changes_the_machine_code_and_the_key(kernel, change, constexprs, monkeypatch):
    function = getattr(outer, kernel)
    before, key = code(function, **constexprs), outer_parts(function, **constexprs)
    assert code(function, **constexprs) == before
    # With an object that may hold anything, the key is never the same: the library is not found again.
    assert (outer_parts(function, **constexprs) == key) is (kernel != "by_an_object")
    change(monkeypatch)
    assert code(function, **constexprs) != before
    assert outer_parts(function, **constexprs) != key


def test_a_constexpr_whose_text_does_not_change_has_its_members_in_the_key(monkeypatch):
    monkeypatch.setattr(outer.Anything, "__repr__", lambda _: "Anything()")
    made = outer.Anything()
    made.shift = tl.constexpr(3)
    before, key = code(outer.by_a_member, made=made), outer_parts(outer.by_a_member, made=made)
    made.shift = tl.constexpr(9)
    assert code(outer.by_a_member, made=made) != before
    assert outer_parts(outer.by_a_member, made=made) != key


def test_functions_in_a_tuple_that_differ_in_what_they_capture_have_their_order_in_the_key():
    small, large = outer.adding(3), outer.adding(9)
    one, other = (small, large), (large, small)
    assert code(outer.by_an_item, made=one) != code(outer.by_an_item, made=other)
    assert outer_parts(outer.by_an_item, made=one) != outer_parts(outer.by_an_item, made=other)


def test_a_constexpr_that_is_a_member_of_an_enumeration_is_never_found_again():
    """Its class may have properties that read anything."""
    made = outer.Shift.LEFT
    assert outer_parts(outer.by_a_member, made=made) != outer_parts(outer.by_a_member, made=made)


def test_a_constexpr_that_uses_an_object_is_never_found_again():
    first, second = (outer_parts(outer.by_a_constexpr, made=outer.by_an_object) for _ in range(2))
    assert first != second


def test_a_str_is_not_the_number_that_it_spells():
    for value in (3, None, True):
        assert code(outer.compare_constant, value=value) != code(outer.compare_constant, value=str(value))
