"""What a launch touches: each bound is compared with what the kernel touches on the CPU, and checked in calls."""

from __future__ import annotations

import functools
import random
import re
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from bounds_kernels import KERNELS, SOURCE
from support.arrays import CudaArray
from support.bounds import Extents, Touched, touched_by

import jitload
from jitload import Launch
from jitload.bounds import execution
from jitload.bounds.execution import SHARED, read_entry
from jitload.bounds.extents import bound_checks, read_extents
from jitload.cpu import library
from jitload.errors import LaunchSpecError
from jitload.kernels.bounds import compile_plainly
from jitload.kernels.source import device_source
from jitload.model import TENSOR_MAP_BYTES
from jitload.request.kind import kernels_alone
from jitload.toolchain.cuda import find_cuda_toolchain

_LARGE = 1 << 17  # bytes of a tensor of which not enough is known
_MOST_SHARED = 40_000  # bytes of dynamic shared memory of which not enough is known
_TORCH = {"float32": torch.float32, "int32": torch.int32, "uint8": torch.uint8, "int16": torch.int16}


@functools.cache
def shared_sizes(ptx: str, symbol: str) -> Mapping[str, int]:
    """Return the sizes of the `__shared__` arrays of a kernel."""
    return read_entry(ptx, symbol).shared


class Case:
    """A random launch of a kernel."""

    def __init__(self, name: str, kernel: tuple[str, str, Any], chance: random.Random) -> None:
        self.parameters = kernel[2]
        is_flat = "Idx.y" not in KERNELS[name][4]
        side = chance.randint(1, 8)
        self.block: Extents = (chance.choice((1, 5, 8, 32, 64)), 1, 1) if is_flat else (side, chance.randint(1, 8), 1)
        if name in ("tiles", "shared_sum"):
            self.block = (8, 8, 1) if name == "tiles" else (chance.choice((1, 2, 16, 64)), 1, 1)
        self.grid: Extents = (chance.randint(1, 5), 1 if is_flat else chance.randint(1, 5), 1)
        highest = chance.choice((3, 20, 150) if is_flat else (3, 30))
        low = 1 if name == "modulo" else 0
        self.numbers = {p.name: chance.randint(low, highest) for p in self.parameters if p.kind in ("int", "uint")}
        touched = touched_by(kernel, self.numbers, self.grid, self.block)
        self.touched = {name: of_name for name, of_name in touched.items() if not name.startswith(SHARED)}
        sizes = shared_sizes(*kernel[:2])
        arrays = {sizes[name.removeprefix(SHARED)]: t for name, t in touched.items() if name.startswith(SHARED) and t}
        is_known = all(t for name, t in touched.items() if name.startswith(SHARED))
        self.dynamic = arrays.pop(0, Touched())
        self.is_outside = any(t.is_exact and t.end > size for size, t in arrays.items())
        self.shared_bytes = self.dynamic.end if is_known else _MOST_SHARED

    def sizes(self) -> dict[str, int]:
        """Return the bytes that each pointer needs."""
        return {name: touched.end if touched else _LARGE for name, touched in self.touched.items()}

    def exact(self) -> dict[str, Touched]:
        """Return what is known exactly."""
        return {name: t for name, t in self.touched.items() if t and t.is_exact and t.end}

    def arguments(self, sizes: dict[str, int], make: Any) -> list[Any]:
        """Return the arguments of a call with tensors of the given sizes in bytes."""
        pointers = {p.name for p in self.parameters if p.kind == "pointer"}
        return [make(p, sizes[p.name]) if p.name in pointers else self.numbers[p.name] for p in self.parameters]


def cpu_tensor(parameter: Any, size: int) -> torch.Tensor:
    dtype = _TORCH.get(parameter.dtype, torch.int64)
    memory = torch.zeros(max(size, 1) + 256, dtype=torch.uint8)
    start = -memory.data_ptr() % 64
    return memory[start : start + size // dtype.itemsize * dtype.itemsize].view(dtype)


def cuda_array(parameter: Any, size: int) -> CudaArray:
    tensor = cpu_tensor(parameter, size)
    return CudaArray(tensor.numpy(), dtype=parameter.dtype, address=1 << 20, strides="null")


@pytest.fixture(scope="module")
def gpu_mod() -> jitload.Module:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JITLOAD_BOUNDS", "1")
        return jitload.load_inline("bounds", cuda_sources=SOURCE, arch="sm_90a")


@pytest.fixture(scope="module")
def cpu_mod() -> jitload.Module:
    return jitload.load_inline("bounds", cuda_sources=SOURCE, arch="cpu", sanitize="address", gpu_check=False)


@pytest.fixture(scope="module")
def kernels(gpu_mod: jitload.Module) -> dict[str, tuple[str, str, Any]]:
    """The PTX, the symbol and the parameters of each kernel."""
    request = kernels_alone(gpu_mod.__dict__["_jitload_request"])
    ptx = compile_plainly(device_source(request), "sm_90a", find_cuda_toolchain(request.settings)).cubin.ptx
    return {name: (ptx, gpu_mod[name].kernel.symbol, gpu_mod[name].kernel.parameters) for name in gpu_mod}


def test_what_is_known_of_each_pointer(kernels):
    for name, (exact, limited, unknown, _, _) in KERNELS.items():
        extents = read_extents(*kernels[name]).items()
        found = {p: "unknown" if e.elements is None else "exact" if e.is_exact else "at most" for p, e in extents}
        expected = {"exact": exact, "at most": limited, "unknown": unknown}
        assert found == {p: kind for kind, names in expected.items() for p in names.split()}, name


UNKNOWN = "its index does not follow from threads, blocks, loops and parameters"
TEXTS = {
    "guarded.y": "n elements",
    "stencil.y": "n - 1 elements, from number 1 on",
    "masked.y": "at most n elements",
    "vectors.y": "4 * (n // 4) elements",
    "mirrored.s": "4 * block.x of 160 bytes of shared memory",
    "dynamic.d": "4 * n + 4 * block.x bytes of dynamic shared memory, from number 4 * n on",
    "gathered.x": f"unknown, because {UNKNOWN}, at bounds.cu:{{}}: ld.global.f32 ",
    "selected.y": "unknown, because the pointer is stored, chosen or passed on, at bounds.cu:{}: ",
}


@pytest.mark.parametrize("name", TEXTS)
def test_an_extent_says_what_is_needed_or_which_line_prevents_this(kernels, name):
    kernel, pointer = name.split(".")
    line = SOURCE[: SOURCE.index(f" void {kernel}(")].count("\n") + 3
    assert str(read_extents(*kernels[kernel])[pointer]).startswith(TEXTS[name].format(line))


def check_on_the_cpu(function: Any, case: Case) -> None:
    """Compare what is known with what the kernel touches."""
    sizes = case.sizes()
    configured = function[case.grid, case.block, case.shared_bytes]
    if case.is_outside:
        with pytest.raises(RuntimeError, match=r"index \d+ of an array"):
            configured(*case.arguments(sizes, cpu_tensor))
        return
    configured(*case.arguments(sizes, cpu_tensor))
    if case.dynamic.is_exact and 0 < case.dynamic.end == case.shared_bytes:
        with pytest.raises(RuntimeError, match="shared memory"):
            function[case.grid, case.block, case.shared_bytes - 4](*case.arguments(sizes, cpu_tensor))
    for name, touched in case.exact().items():
        element = cpu_tensor(next(p for p in case.parameters if p.name == name), 0).element_size()
        arguments = case.arguments({**sizes, name: touched.end - element}, cpu_tensor)
        where = (
            rf"at byte \d+ of '{name}', which has {touched.end - element} bytes|at address 0x0, which is in no tensor"
        )
        with pytest.raises(RuntimeError, match=where):
            configured(*arguments)


@pytest.mark.parametrize("count", [4, pytest.param(200, marks=pytest.mark.soak)])
@pytest.mark.parametrize("name", KERNELS)
def test_each_bound_is_what_the_kernel_touches(cpu_mod, kernels, name, count):
    chance = random.Random(name)
    for _ in range(count):
        check_on_the_cpu(cpu_mod[name], Case(name, kernels[name], chance))


@pytest.fixture(scope="module")
def race_mods() -> tuple[jitload.Module, jitload.Module]:
    """The kernels with checks of races, and the same without launches that are not checked."""
    options: dict[str, Any] = {"arch": "cpu", "sanitize": "race", "gpu_check": False}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(library, "find_separation", lambda *_: {})
        checked = jitload.load_inline("bounds", cuda_sources=f"{SOURCE}// checked", **options)
    return jitload.load_inline("bounds", cuda_sources=SOURCE, **options), checked


def outcome(function: Any, arguments: list[Any]) -> str | None:
    try:
        function(*arguments)
    except RuntimeError as error:
        return str(error)
    return None


@pytest.mark.parametrize("count", [3, pytest.param(200, marks=pytest.mark.soak)])
def test_only_launches_without_a_race_are_not_checked(race_mods, kernels, count):
    mod, checked = race_mods
    request = mod.guarded._jitload_library.request
    chance = random.Random(count)
    for name in library.find_separation(device_source(request), find_cuda_toolchain(request.settings)):
        for _ in range(count):
            case = Case(name, kernels[name], chance)
            shift = chance.choice((0, 0, -4, 8))
            sizes = {pointer: max(0, size + shift) for pointer, size in case.sizes().items()}
            grid, block = (*case.grid[:2], chance.randint(1, 2)), (*case.block[:2], chance.choice((1, 1, 2)))
            results = [outcome(m[name][grid, block], case.arguments(sizes, cpu_tensor)) for m in (mod, checked)]
            assert (results[0] is None) == (results[1] is None), (name, grid, block, case.numbers, sizes)


# ---- calls ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", KERNELS)
def test_a_call_is_refused_if_it_would_access_memory_outside_of_a_tensor(gpu_mod, kernels, stub_driver, name):
    chance = random.Random(name)
    for _ in range(6):
        case = Case(name, kernels[name], chance)
        function, sizes = gpu_mod[name][case.grid, case.block, case.shared_bytes], case.sizes()
        stub_driver.clear()
        if case.is_outside:
            with pytest.raises(ValueError, match="of a __shared__ array, which has"):
                function(*case.arguments(sizes, cuda_array))
            continue
        function(*case.arguments(sizes, cuda_array))
        if case.dynamic.is_exact and 0 < case.dynamic.end == case.shared_bytes:
            short = case.shared_bytes - 1
            message = rf"bytes \d+ to {short} of its dynamic shared memory, which has {short} bytes: pass more"
            with pytest.raises(ValueError, match=message):
                gpu_mod[name][case.grid, case.block, short](*case.arguments(sizes, cuda_array))
        assert len(stub_driver.launches()) == 1
        for pointer, touched in case.exact().items():
            parameter = next(p for p in case.parameters if p.name == pointer)
            size = cpu_tensor(parameter, 0).element_size()
            arguments = case.arguments({**sizes, pointer: touched.end - size}, cuda_array)
            count = touched.end // size - 1
            message = rf"elements \d+ to {count} of argument '{pointer}', which has {count}:"
            with pytest.raises(ValueError, match=rf"^{name}\(\): the kernel would access {message}"):
                function(*arguments)
        assert len(stub_driver.launches()) == 1


def float_array(size: int, **claims: Any) -> CudaArray:
    return CudaArray(torch.zeros(size).numpy(), **claims)


def test_a_call_whose_numbers_do_not_fit_their_registers_is_not_refused(gpu_mod, stub_driver):
    x, y = float_array(8), float_array(8)
    with pytest.raises(ValueError, match="elements 0 to 99 of argument 'x', which has 8"):
        gpu_mod.guarded[1, 256](x, y, 100)
    gpu_mod.guarded[2**31 - 1, 256](x, y, 100)  # the index of a thread is negative in some blocks
    gpu_mod.rows[(1, 2), 8](x, float_array(16), 2, 8, 2**62)  # the last element of x has a number of more than 64 bits
    gpu_mod.backwards[1, 8](x, y, 0)
    gpu_mod.passed[1, 64](x, y, 100)  # the function that is called may end the threads
    with pytest.raises(ValueError, match="elements 0 to 15 of argument 'y', which has 8"):
        gpu_mod.rows[(1, 2), 8](float_array(16), y, 2, 8, 8)
    assert len(stub_driver.launches()) == 4


def test_the_memory_of_a_tensor_ends_with_its_last_element(stub_driver):
    functions = {
        "f": Launch(kernel="guarded", grid=1, block=64, strided="x", nullable="y", raw_pointers="y", bounds="check"),
        "unchecked": Launch(kernel="guarded", grid=1, block=64),
        "before": Launch(grid=1, block=64, bounds="check"),
        "ends": Launch(bounds="check"),
    }
    text = SOURCE[: SOURCE.index('extern "C" __global__ void unguarded')]
    text += 'extern "C" __global__ void before(float* x) { if (threadIdx.x > 2) x[(int)threadIdx.x - 5] = 1; }'
    text += 'extern "C" __global__ void ends(float* x) { x[blockIdx.x] = 1; x[threadIdx.x] = 2; }'
    mod = jitload.load_inline("bounds", cuda_sources=text, functions=functions, arch=("sm_90a", "sm_80"))
    x, short = float_array(9), float_array(7)
    mod.f(CudaArray(x.array, shape=(2, 4), strides=(5, 1)), x, 9)
    mod.f(CudaArray(x.array, shape=(2, 4), strides=(-5, 1)), x, 9)  # the kernel may get a pointer into the memory
    mod.f(x, x.address, 9)
    mod.f(x, short, 0)
    mod.unchecked(x, short, 9)
    launches = len(stub_driver.launches())
    for arguments, message in (
        ((CudaArray(x.array, shape=(2, 4), strides=(5, 1)), x, 10), "elements 0 to 9 of argument 'x', which has 8"),
        ((CudaArray(x.array, shape=(0, 4)), x, 1), "elements 0 to 0 of argument 'x', which has 0"),
        ((x, None, 9), "argument 'y', which is None"),
    ):
        with pytest.raises(ValueError, match=message):
            mod.f(*arguments)
    with pytest.raises(ValueError, match="elements -2 to 58 of argument 'x', which has 100"):
        mod.before(float_array(100))
    for configuration in ((1, 10), (10, 1)):
        with pytest.raises(ValueError, match="elements 0 to 9 of argument 'x', which has 9"):
            mod.ends[configuration](x)
    assert len(stub_driver.launches()) == launches


def test_only_what_holds_for_all_architectures_is_checked(stub_driver, caplog):
    text = """extern "C" __global__ void f(float* x) {
        #if __CUDA_ARCH__ >= 900
          x[threadIdx.x] = 1;
        #else
          x[threadIdx.x + 1] = 1;
        #endif
    }"""
    launch = Launch(grid=1, block=8, bounds="check")
    for arch in ("sm_90a", ("sm_90a", "sm_80")):
        mod = jitload.load_inline("f", cuda_sources=text, functions={"f": launch}, arch=arch, extra_cuda_cflags=["-G"])
        if arch == "sm_90a":
            with pytest.raises(ValueError, match="elements 0 to 7"):
                mod.f(float_array(7))
        else:
            mod.f(float_array(7))
    assert not caplog.records  # NVRTC would warn of options that conflict with -G


def test_extents_need_the_source_of_one_kernel(gpu_mod):
    assert str(gpu_mod.guarded.extents) == "x: n elements\ny: n elements"
    assert gpu_mod.guarded[1, 32].extents is gpu_mod.guarded.extents  # the kernel is compiled once
    cubin = jitload.compile_cubin(SOURCE, arch="sm_90a")
    mod = jitload.load_inline("cubin", embed_cubin={"k": cubin}, functions={"guarded": Launch()})
    with pytest.raises(jitload.JitLoadError, match=r"guarded\(\) .* has no CUDA source at hand"):
        _ = mod.guarded.extents
    with pytest.raises(LaunchSpecError, match="needs CUDA source, not a cubin"):
        jitload.load_inline("cubin", embed_cubin={"k": cubin}, functions={"guarded": Launch(bounds="check")})


def conditional_stores(count: int) -> str:
    """Return PTX with so many stores, each under a condition of its own."""
    stores = "".join(
        f"add.s32 %q{n}, %r2, {n}; setp.ge.s32 %p{n}, %r1, %q{n}; @%p{n} bra $L{n}; st.global.u32 [%rd3], %r1; $L{n}:\n"
        for n in range(count)
    )
    return f""".entry stores(.param .u64 p_0, .param .u32 p_1) {{
        ld.param.u64 %rd1, [p_0]; ld.param.u32 %r2, [p_1]; mov.u32 %r1, %tid.x; mul.wide.u32 %rd2, %r1, 4;
        add.s64 %rd3, %rd1, %rd2;
        {stores} ret; }}"""


def test_there_is_a_limit_for_instructions(kernels, monkeypatch):
    _, _, (x, _, n) = kernels["guarded"]
    assert [op.name for op in bound_checks(conditional_stores(200), "stores", [x, n])[0]].count("OUTSIDE") == 2 * 200
    monkeypatch.setattr(execution, "MOST_INSTRUCTIONS", 4)
    assert not bound_checks(conditional_stores(5), "stores", [x, n])


LOOP = "$A: add.s32 %r2, %r2, 1; setp.lt.s32 %p1, %r2, 5; @%p1 bra $A;"


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (f"bra $B; {LOOP.replace(';', '; $B:', 1)}", "a loop with several entries, or in several pieces"),
        (f"bra $B; $C: st.global.u32 [%rd1+4], 0; ret; $B: {LOOP} bra $C;", "a loop with several entries, or"),
        ("$A: $B: ts: .branchtargets $A, $B; brx.idx %r2, ts;", "a branch to one of many labels"),
        (LOOP, ""),
    ],
)
def test_control_flow_that_is_not_followed_is_unknown(kernels, code, reason):
    _, _, (x, _, _) = kernels["guarded"]
    ptx = f".entry f(.param .u64 a) {{ ld.param.u64 %rd1, [a]; mov.u32 %r2, 0; {code} st.global.u32 [%rd1], 0; ret; }}"
    extent = read_extents(ptx, "f", [x])["x"]
    assert reason in extent.reason
    assert extent.elements == (None if reason else "1")


def test_a_condition_that_is_tested_twice_is_not_taken_for_one_branch(kernels):
    """Half of all paths lead to the store, as if only %p1 decided, but some end although %p1 holds."""
    _, _, (x, _, n) = kernels["guarded"]
    loaded = "".join(f"ld.global.u32 %r{k}, [%rd1]; setp.eq.s32 %p{k}, %r{k}, {k};" for k in range(2, 6))
    ptx = f""".entry f(.param .u64 a, .param .u32 b) {{ ld.param.u64 %rd1, [a]; ld.param.u32 %r1, [b];
        setp.gt.s32 %p1, %r1, 3; {loaded} @%p1 bra $A; @%p2 bra $J; @%p3 bra $J; ret; $A: @%p4 bra $X; @%p5 bra $J; ret;
        $J: @%p1 bra $X; ret; $X: st.global.u32 [%rd1+40], %r1; ret; }}"""
    assert str(read_extents(ptx, "f", [x, n])["x"]) == "at most 11 elements"


def test_a_tensor_map_is_unknown(kernels):
    ptx, symbol, (x, *others) = kernels["guarded"]
    extents = read_extents(ptx, symbol, (x._replace(size=TENSOR_MAP_BYTES), *others))
    assert str(extents["x"]).startswith("unknown, because it is a tensor map")


def test_what_ptx_cannot_be_read_is_unknown(kernels):
    ptx, symbol, parameters = kernels["guarded"]
    for old, new in (("mul.lo.s32", "mul.hi.s32"), ("mul.lo.s32", "mul24.lo.s32"), (f".entry {symbol}", ".entry f")):
        assert old in ptx
        extents = read_extents(ptx.replace(old, new), symbol, parameters)
        assert all(extent.elements is None and extent.reason for extent in extents.values())
        assert not bound_checks(ptx.replace(old, new), symbol, parameters)


@pytest.mark.parametrize(
    ("before", "is_known"),
    [
        pytest.param("// }\n", True, id="a brace in a comment"),
        pytest.param("{ .reg .b32 %r1, %p<9>; mov.u32 %r1, %p8; }", True, id="registers of an inner scope"),
        pytest.param("{ .reg .b32 %r1; } mov.u32 %r1, %r9;", True, id="a register after an inner scope"),
        pytest.param("{ .reg .b64 %rd3; { mov.u64 %rd3, %rd9; } }", True, id="a register in a scope of a scope"),
        pytest.param("{ WAIT: bar.sync 0; } { WAIT: bar.sync 0; }", False, id="a label of two scopes"),
    ],
)
def test_registers_in_scopes_of_inline_ptx_are_followed_and_labels_are_unknown(kernels, before, is_known):
    ptx, symbol, parameters = kernels["guarded"]
    expected = read_extents(ptx, symbol, parameters)
    changed = ptx.replace("ld.param", f"{before} ld.param")
    assert (read_extents(changed, symbol, parameters) == expected) is is_known
    assert bool(bound_checks(changed, symbol, parameters)) is is_known


def test_a_narrow_number_of_a_thread_is_not_taken_for_all_of_it(kernels):
    ptx, symbol, parameters = kernels["guarded"]
    changed = re.sub(r"mov\.u32(\s+%r\d+), %tid\.x", r"cvt.s32.s8\1, %tid.x", ptx)

    def conditions(text):
        return [sum(op.name == "SKIP_IF_NOT" for op in check) for check in bound_checks(text, symbol, parameters)]

    assert changed != ptx
    assert all(more > fewer for more, fewer in zip(conditions(changed), conditions(ptx), strict=True))


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        pytest.param("ld.global.v2.u32 {%r2, %r3}, [%rd2]; sub.s32 %r4, %r2, %r3;", "its index", id="two numbers"),
        pytest.param("xor.b64 %rd1, %rd1, 64; mov.u32 %r4, 0;", "the pointer is stored", id="a changed pointer"),
        pytest.param("mov.u32 %r4, 010;", "its index", id="an octal number"),
    ],
)
def test_what_an_instruction_makes_of_a_register_is_not_taken_for_another_value(kernels, code, expected):
    _, _, (x, y, _) = kernels["guarded"]
    ptx = f""".entry f(.param .u64 a, .param .u64 b) {{ ld.param.u64 %rd1, [a]; ld.param.u64 %rd2, [b];
        {code} mul.wide.s32 %rd4, %r4, 4; add.s64 %rd5, %rd1, %rd4; st.global.u32 [%rd5], 0; ret; }}"""
    assert read_extents(ptx, "f", [x, y])["x"].reason.startswith(expected)
    assert not any(op.name == "OUTSIDE" and op.operand == 0 for check in bound_checks(ptx, "f", [x, y]) for op in check)


SHARED_STORE = """.shared .align 4 .b8 s[64];
.entry f() {{ mov.u32 %r1, %tid.x; setp.eq.s32 %p1, %r1, 0; mov.u32 %r2, 0; {} st.shared.u32 [%r2], %r1; ret; }}"""


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("mov.u32 %r2, s;", "4 of 64 bytes of shared memory"),
        ("cvta.shared.u64 %rd1, s; st.u32 [%rd1+4], %r1; mov.u32 %r2, s;", "8 of 64 bytes of shared memory"),
        ("mov.u32 %r2, s; st.shared.v4.u32 [s+60], {%r1, %r1, %r1, %r1};", "76 of 64 bytes of shared memory"),
        ("mov.u32 %r2, s; cp.async.ca.shared.global [s+60], [0], 8;", "unknown, because jitload does not know"),
        ("@%p1 mov.u32 %r2, s;", "unknown"),
        ("mov.u32 %r2, s+60;", "unknown"),
        ("selp.b32 %r2, s, 0, %p1;", "unknown"),
        ("mov.b64 %rd1, {s, %r1}; mov.u32 %r2, s;", "unknown"),
        ("mov.u32 %r2, s; mbarrier.init.shared.b64 [s+8], 1;", "unknown"),
        ("mov.u32 %r2, s; st.global.u32 [%r2], %r1;", "unknown"),
        ("{ .shared .b32 s[4]; mov.u32 %r2, s; }", None),
    ],
)
def test_what_ptx_does_with_shared_memory_is_followed_or_unknown(code, expected):
    ptx = SHARED_STORE.format(code)
    found = read_extents(ptx, "f", []).get("s")
    assert str(found).startswith(str(expected))
    assert len(bound_checks(ptx, "f", [])) == (expected or "").startswith("76")
    dynamic = read_extents(f".extern {ptx}", "f", []).get("s")
    assert dynamic is None or dynamic.elements is None or "dynamic" in str(dynamic)


@pytest.mark.gpu
@pytest.mark.usefixtures("gpu")
def test_a_call_on_the_gpu_is_refused_before_the_launch():
    launch = Launch(grid="ceil_div(n, 256)", block=256, bounds="check")
    functions = {"guarded": launch, "vectors": launch, "dynamic": Launch(bounds="check")}
    mod = jitload.load_inline("bounds_gpu", cuda_sources=SOURCE, functions=functions)
    x, y = torch.ones(1000, device="cuda"), torch.zeros(1001, device="cuda")
    mod.guarded(x, y, 1000)
    assert y.sum() == 1000
    with pytest.raises(ValueError, match="elements 0 to 1000 of argument 'x', which has 1000"):
        mod.guarded(x, y, 1001)
    mod.vectors(x, y[:1000], 1003)
    with pytest.raises(ValueError, match="elements 0 to 1003 of argument 'x', which has 1000"):
        mod.vectors(x, y[:1000], 1004)
    mod.dynamic[1, 64, 300](x, y, 11)
    with pytest.raises(ValueError, match="bytes 44 to 299 of its dynamic shared memory, which has 296"):
        mod.dynamic[1, 64, 296](x, y, 11)
    torch.cuda.synchronize()
