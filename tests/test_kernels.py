"""From source to typed kernels: the number of NVRTC runs, unusual sources, `--minimal`, and spilled registers."""

import json
import re
from pathlib import Path

import pytest
from builds import ARCH, build, kernel, load, run_python
from support.kernels import SPILLS

import jitload
from jitload import Launch
from jitload.cuda.messages import read_spills, without_report
from jitload.elf.cubin import read_cubin
from jitload.kernels.source import DeviceSource
from jitload.settings import read_settings
from jitload.toolchain.cuda import find_cuda_toolchain


def compile_text(text: str, **options: object):
    return jitload.compile_cubin(text, arch=ARCH, **options)


MACRO_C = '#define KERNEL(name) extern "C" __global__ void name\nKERNEL(made)(float* x) { x[0] = 1; }\n'
MACRO_CXX = "#define KERNEL(name) __global__ void name##_kernel\nKERNEL(made)(float* x) { auto first = x; }\n"
DEPENDENT = """template <class T> struct Traits { struct Big { T x[3]; }; typedef Big type; };
template <class T> __global__ void k(typename Traits<T>::type x) {}
template __global__ void k<float>(Traits<float>::type);
"""
RUNS = {
    "one kernel": (1, kernel("k")),
    "overloads": (1, "__global__ void k(float* x) {}\n__global__ void k(int* x) {}"),
    "a macro's kernel whose symbol has its types": (1, MACRO_CXX),
    "a comment": (1, "// __global__ void no();\n" + kernel("k")),
    "a candidate that is none": (2, "#if 0\n__global__ void no() {}\n#endif\n" + kernel("k")),
    "a macro's extern C kernel": (2, MACRO_C),
    "a macro's kernel with a structure": (1, "struct Big { int x[3]; };\n" + MACRO_CXX.replace("float*", "Big")),
    "a type in a template": (2, DEPENDENT),
    "names that nvcc brings": (2, "__global__ void k(int64_t* x, uint n) { x[n] = 3; }"),
}


@pytest.mark.parametrize("case", RUNS)
def test_the_number_of_nvrtc_runs(case, nvrtc_runs):
    runs, text = RUNS[case]
    compile_text(text)
    assert len(nvrtc_runs) == runs


@pytest.mark.parametrize(("arch", "has_instructions"), [("sm_90", True), ("sm_80", False)])
def test_dependent_launches_need_no_include(arch, has_instructions):
    calls = "cudaGridDependencySynchronize(); cudaTriggerProgrammaticLaunchCompletion();"
    cubin = jitload.compile_cubin(kernel("k", calls), arch=arch).data
    alone = jitload.compile_cubin(kernel("k"), arch=arch).data
    assert (cubin != alone) == has_instructions


@pytest.mark.parametrize("first", ["__device__ void {}() {{}}", "#include <cuda_runtime.h>\n#define {}() (void)0"])
def test_a_source_may_declare_such_functions_itself(first):
    name = "cudaGridDependencySynchronize"
    own = jitload.compile_cubin(f"{first.format(name)}\n{kernel('k', f'{name}();')}", arch="sm_90").data
    assert own == jitload.compile_cubin(kernel("k", "\n"), arch="sm_90").data


def test_the_source_and_the_headers_decide_over_such_names():
    text = "typedef long long int64_t;\n__global__ void k(int64_t* x, uint32_t n) {}\n#include <stddef.h>\n"
    (typed,) = compile_text(text).kernels
    assert [parameter.type for parameter in typed.parameters] == ["long long*", "unsigned int"]
    after = "__global__ void k(uint32_t n) {}\n#include <stdint.h>\n__global__ void m(uint8_t n) {}"
    assert [kernel.name for kernel in compile_text(after).kernels] == ["k", "m"]


def test_headers_of_the_users_own_in_quotes_hide_those_in_memory(tmp_path: Path):
    (tmp_path / "nested").mkdir()
    (tmp_path / "queue").write_text("struct Queue { float first; };\n")
    (tmp_path / "nested" / "mutex").write_text("#include <mutex>\nstruct Mutex { int owner; };\n")
    (tmp_path / "nested" / "locks.h").write_text('#include "mutex"\n')
    text = '#include "queue"\n#include "nested/locks.h"\n#include <unistd.h>\n__global__ void k(Queue q, Mutex m) {}'
    library = build(text, extra_include_paths=[tmp_path])
    assert str(jitload.load_module(library).k) == "<jitload function k(Queue q, Mutex m)>"
    manifest = json.loads((library.parent / "manifest.json").read_text())
    assert {"@0/queue", "@0/nested/mutex"} <= {header["path"] for header in manifest["dependencies"]}


def test_the_systems_headers_are_not_the_users_own(tmp_path):
    system_dir = tmp_path / "usr" / "include"
    system_dir.mkdir(parents=True)
    (system_dir / "stdint.h").write_text("#error not for device code\n")
    (system_dir / "users.h").write_text("#include <stdint.h>\ntypedef int64_t users;\n")
    text = '#include "stdint.h"\n#include <users.h>\n__global__ void k(users n) {}'
    assert compile_text(text, extra_include_paths=[system_dir]).kernels


def test_what_stays_undefined_is_said_alone():
    with pytest.raises(jitload.errors.CompileError) as caught:
        compile_text("__global__ void k(int64_t* x) {\n  x[0] = undefined_thing;\n}")
    assert [(d.line, d.message) for d in caught.value.diagnostics] == [(2, 'identifier "undefined_thing" is undefined')]


def test_a_template_that_a_launch_names_takes_one_run(nvrtc_runs):
    text = "template <class T, int N> __global__ void k(T* x) {}"
    compiled = compile_text(text, kernels=("k<float, 4>", "k<int, 2>"))
    assert len(nvrtc_runs) == 1
    assert list(map(str, compiled.kernels)) == ["k<float, 4>(float* x)", "k<int, 2>(int* x)"]


TEMPLATE = "template <const int N = 256> __global__ void k"
# The first parameter has an undeclared type: NVRTC crashes if a name expression then instantiates the template.
CRASHES = [
    f"{TEMPLATE}(whatever_t*, int*) {{}}",
    f"{TEMPLATE}(whatever_t* x, int* y) {{ y[0] = x[0]; }}",
    f"{TEMPLATE}(std::vector<int> x) {{}}",
    f"{TEMPLATE}(cg::grid_group grid) {{}}",
    f"#define TYPE whatever_t\n{TEMPLATE}(TYPE* x) {{}}",
    f"namespace a {{ struct P; }}\n{TEMPLATE}(P* x) {{}}",
    *(f"{TEMPLATE}(whatever_t*) {{}}\n{unclosed}" for unclosed in ("void f() {", "int x = (1 +", "#if 0", "/*", "\\")),
]


def test_errors_in_a_template_that_a_launch_names_do_not_crash_nvrtc():
    code = """
import test_kernels
from jitload.errors import CompileError
first, *others = test_kernels.CRASHES
cases = [(text, "k<256>", ()) for text in others]
cases += [(first, "k<256>", ()), (first, "k<256>", ("-std=c++03",)), (first, "k<4>(int*, int*)", ())]
for text, kernel, options in cases:
    try:
        test_kernels.compile_text(text, kernels=(kernel,), extra_cuda_cflags=options)
    except CompileError as error:
        assert "__jitload" not in error.log, error.log
        assert error.diagnostics[0].line <= 2, error.log
    else:
        raise AssertionError(text)
"""
    done = run_python(code)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize("text", [f"{TEMPLATE}(int8_t* x, uint64_t* y) {{}}", f"{TEMPLATE}(uint x, int8_t* y) {{}}"])
def test_a_template_may_use_types_that_nvcc_knows(text, nvrtc_runs):
    assert len(compile_text(text, kernels=("k<128>",)).kernels) == 1
    assert len(nvrtc_runs) == 2


def test_overloads_know_what_integers_an_enum_has():
    text = "enum class E : short { A };\n__global__ void k(const E* x) {}\n__global__ void k(float* x) {}"
    assert [k.parameters[0].dtype for k in compile_text(text).kernels] == ["int16", "float32"]


BIG = 32764 - 8
NVCC_INCLUDES = (
    "stdio.h", "stdlib.h", "math.h", "string.h", "assert.h", "stdint.h", "cstdint", "cmath", "vector", "iostream",
    "cuda_runtime.h", "cuda.h", "device_launch_parameters.h", "limits", "type_traits",
)  # fmt: skip
UNUSUAL = r"""
#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
struct S { float a; char b; };
typedef float real; using index = unsigned int; template <class T> using ptr = const T*;
__device__ float f(float x) { return x; }
template <float (*F)(float)> __global__ void call(float* x) { *x = F(*x); }
template __global__ void call<f>(float*);
template <class... T> __global__ void pack(int n, T... t) {}
template __global__ void pack(int, float, double*);
__global__ void shorts(half* a, __nv_bfloat16* b, half c, __nv_fp8_e4m3* d, const __nv_fp8_e5m2* e) {}
__global__ void constant(const __grid_constant__ S s, const __grid_constant__ CUtensorMap map, int* x) { *x = s.b; }
__global__ void aliases(real* x, index n, ptr<real> y) {}
namespace a { namespace b { __global__ void k(float* x) {} } } namespace a::c { __global__ void l(int n) {} }
namespace { __global__ void anonymous(float* x) {} }
extern "C" __global__ void __launch_bounds__(256, 2) bounds(float* x) {}
__global__ void __cluster_dims__(2, 1, 1) cluster(float* x) {}
__device__ const char* s = R"x(
__global__ void no(int);
)x"; /* __global__ void no(); */
"""
SIGNATURES = """shorts(__half* a, __nv_bfloat16* b, __half c, __nv_fp8_e4m3* d, const __nv_fp8_e5m2* e)
constant(S s, CUtensorMap_st map, int* x)
aliases(float* x, unsigned int n, const float* y)
a::b::k(float* x)
a::c::l(int n)
anonymous(float* x)
bounds(float* x)
cluster(float* x)
call<&(f(float))>(float* x)
pack<float, double*>(int n, float t0, double* t1)"""
ZOO = {
    "unusual kernels": (UNUSUAL, SIGNATURES),
    "macro C": (MACRO_C, "made(float* arg0)"),
    "macro C++": (MACRO_CXX, "made_kernel(float* arg0)"),
    "CRLF": ("// größer\r\n__global__ void k(\r\n    float* x)\r\n{\r\n}\r\n", "k(float* x)"),
    "nvcc's includes": (
        "".join(f"#include <{name}>\n" for name in NVCC_INCLUDES)
        + 'extern "C" __global__ void k(float* x, uint8_t n) { assert(n); printf("%f", sqrtf(*x)); }',
        "k(float* x, unsigned char n)",
    ),
}


@pytest.mark.parametrize("case", ZOO)
def test_unusual_sources_have_typed_kernels(case):
    text, signatures = ZOO[case]
    assert sorted(map(str, compile_text(text).kernels)) == sorted(signatures.split("\n"))


def test_an_anonymous_namespace_builds_the_same_twice(monkeypatch, tmp_path):
    text = "namespace { __global__ void k(float* x) {} }"
    assert list(load(text)) == ["k"]
    toolchain = find_cuda_toolchain(read_settings())
    if toolchain.version >= (12, 9):
        assert compile_text(text).data == compile_text(text).data


def test_overloads_and_templates_are_named_in_a_launch():
    text = "__global__ void k(float* x) {}\n__global__ void k(int* x, int n) {}\n"
    text += "namespace ns { template <class T, int N> __global__ void t(T* x) {} }"
    functions = {
        "first": Launch(kernel="k(float*)"),
        "second": Launch(kernel="k(int*, int)"),
        "third": Launch(kernel="ns::t<float, 4>"),
        "fourth": Launch(kernel=" ns::t< double , sizeof(float[2]) > "),
    }
    module = load(text, functions=functions)
    assert [module[name].kernel.name for name in module] == ["k", "k", "ns::t<float, 4>", "ns::t<double, 8>"]
    assert repr(module.second) == "<jitload function second(int* x, int n)>"
    with pytest.raises(jitload.errors.LaunchSpecError, match=r"^kernel 'third', .*does not match any kernel"):
        build(text, functions={"third": Launch(kernel="ns::t<nothing, 4>")})


def test_parameters_from_a_byte_to_32_kilobytes_have_the_cubins_sizes():
    text = f"struct Empty {{}}; struct Big {{ char data[{BIG - 16}]; }};\n"
    (typed,) = compile_text(text + "__global__ void k(Empty a, float* x, Big b, char c) {}").kernels
    assert [(p.name, p.kind, p.offset, p.size) for p in typed.parameters] == [
        ("a", "struct", 0, 1),
        ("x", "pointer", 8, 8),
        ("b", "struct", 16, BIG - 16),
        ("c", "int", 16 + BIG - 16, 1),
    ]


def test_an_enum_that_one_compiler_calls_unsigned_is_the_same_for_both():
    text = 'enum Mode { ADD, MUL }; extern "C" __global__ void k(Mode mode, float* x) {}'
    assert jitload.load_module(build(text, arch=(ARCH, "cpu"))).k.kernel.parameters[0].kind == "int"


@pytest.mark.parametrize("otherwise", ["", "old(int* x)", "hopper(float* x)"])
def test_a_kernel_that_differs_between_architectures_or_that_one_alone_has_is_refused(otherwise):
    text = 'extern "C" __global__ void both(int* x) {}\n#if __CUDA_ARCH__ >= 900\n'
    text += 'extern "C" __global__ void hopper(int* x) {}\n#else\n'
    text += f'extern "C" __global__ void {otherwise} {{}}\n#endif\n' if otherwise else "#endif\n"
    words = f"kernel '{otherwise.partition('(')[0] or 'hopper'}' differs between sm_80 and sm_90a, or is missing\n"
    with pytest.raises(jitload.errors.LaunchSpecError, match=words):
        build(text, arch=("sm_80", "sm_90a"))


AGREED = "struct P { int a; }; enum E { A }; typedef float real;\n" + 'extern "C" __global__ void k('
AGREED += "const real* x, long n, P p, E e, E* q, float4 v) {}"
AGREEING = (
    "const float* x, int64_t n, P p, E e, E* q, float4 v",
    "float* a, long long b, struct P c, int d, int* e, float4 f",
    "void k(const real* x, long int n, struct Alias p, E e, E* q, float4)",
)
DISAGREEING = (
    "double* x, long n, P p, E e, E* q, float4 v",
    "float* x, double n, P p, E e, E* q, float4 v",
    "float* x, long n, int p, E e, E* q, float4 v",
    "float* x, long n, P p, E e, E* q, int4 v",
    "float* x, long n, P p, E e, E* q",
)


@pytest.mark.parametrize("arch", [ARCH, "cpu"])
def test_a_signature_beside_a_source_agrees_with_the_compiler(arch):
    module = load(AGREED, arch=arch, functions={"f": Launch(kernel="k", signature=AGREEING[0])})
    assert repr(module.f).startswith("<jitload function f(const float* x, long n")
    for text in (*(DISAGREEING if arch != "cpu" else DISAGREEING[:1]), "int a b c"):
        with pytest.raises(jitload.errors.SignatureError, match="kernel 'k'"):
            build(AGREED, arch=arch, functions={"k": Launch(signature=text)})


@pytest.mark.parametrize("text", AGREEING[1:])
def test_a_signature_gives_names_and_the_compiler_gives_types(text):
    parameters = load(AGREED, functions={"k": Launch(signature=text)}).k.kernel.parameters
    assert [p.type for p in parameters] == ["const float*", "long", "P", "E", "E*", "float4"]


def test_a_signature_of_a_cubin_agrees_with_its_symbols():
    cubin = compile_text("__global__ void k(float* x, int n) { x[0] = n; }")
    for text in ("double* x, int n", "float* x", "int a b c"):
        with pytest.raises(jitload.errors.SignatureError, match=r"kernel '(k|f)'"):
            jitload.build_inline("m", embed_cubin={"c": cubin}, functions={"f": Launch(kernel="k", signature=text)})


def test_a_function_knows_its_kernel_for_each_architecture():
    text = """
    extern "C" __global__ void plain(float* x) {}
    extern "C" __global__ void k(float* x) {
    #if __CUDA_ARCH__ >= 900
        __shared__ float staged[64];
        staged[threadIdx.x % 64] = x[0];
        __syncthreads();
        x[1] = staged[threadIdx.x % 63];
    #endif
    }"""
    cubins = {arch: jitload.compile_cubin(text, arch=arch) for arch in ("sm_80", "sm_90a")}
    module = load(text, arch=("sm_80", "sm_90a"))
    for function in (module.k, module.k[1, 1]):
        assert list(function.kernels) == ["sm_80", "sm_90a"]
        assert function.kernels == {arch: cubin.kernels[1] for arch, cubin in cubins.items()}
        assert [cubin.shared_bytes for cubin in function.kernels.values()] == [0, 256]
        assert function.kernel == function.kernels["sm_80"]
    alone = load(text, arch="sm_90a")
    assert alone.k.kernels == {"sm_90a": alone.k.kernel}


NEED_MORE = {
    "an include": "#include <cuda_fp16.h>\n__global__ void k(__half* x) {}",
    "a texture": "__global__ void k(cudaTextureObject_t t, float* x) { x[0] = tex1D<float>(t, 0.5f); }",
    "what only a macro shows": "#define JOINED(a, b) a##b\n__global__ void k(JOINED(cud, aTextureObject_t)* x) {}",
    "a macro of the runtime's": "#ifdef CUDA_IPC_HANDLE_SIZE\n" + kernel("k") + "\n#endif",
    "whether something is left out": "#ifndef __CUDACC_RTC_MINIMAL__\n" + kernel("k") + "\n#endif",
    "a name of the runtime's headers": "enum { MAJOR_VERSION = 3 };\n" + kernel("k"),
}


@pytest.mark.parametrize("case", NEED_MORE)
def test_sources_that_need_what_minimal_leaves_out_compile(case):
    assert [kernel.name for kernel in compile_text(NEED_MORE[case]).kernels] == ["k"]


@pytest.mark.parametrize("argument", ["cudaExtent", "CUstream_st", "libraryPropertyType"])
def test_a_launch_may_name_types_that_minimal_leaves_out(argument):
    text = "template <class T> __global__ void k(T* x) {}"
    compiled = compile_text(text, kernels=("k<float>", f"k<{argument}>"))
    assert [kernel.parameters[0].kind for kernel in compiled.kernels] == ["pointer"] * 2
    with pytest.raises(jitload.errors.LaunchSpecError, match='The compiler says: identifier "none_such" is undefined'):
        compile_text(text, kernels=("k<none_such>",))


def test_minimal_changes_no_code(monkeypatch, nvrtc_runs):
    texts = [text for _, text in RUNS.values()]
    short = [compile_text(text).data for text in texts]
    assert all("--minimal" in job.options for job in nvrtc_runs)
    monkeypatch.setattr(DeviceSource, "is_minimal", False)
    assert [compile_text(text).data for text in texts] == short


# ---- spilled registers, in every kind of code that a linker of NVIDIA's assembles -----------------------------------

# NVRTC 13.0; 12.4 has no barriers and no times, and its lines are the same otherwise.
LOG = """\
k.cu(1): warning #177-D: variable "unused" was declared but never referenced

ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized
ptxas info    : Overriding global maxrregcount 64 with entry-specific value 32 computed using thread count
ptxas info    : 3 bytes gmem
ptxas info    : Compiling entry function 'calls' for 'sm_90a'
ptxas info    : Function properties for calls
ptxas         .     1008 bytes stack frame, 8 bytes spill stores, 4 bytes spill loads
ptxas info    : Used 32 registers, used 1 barriers, 1008 bytes cumulative stack size
ptxas info    : Compile time = 158.469 ms
ptxas info    : Function properties for _Z4workPf
ptxas         .     0 bytes stack frame, 1116 bytes spill stores, 2008 bytes spill loads
ptxas info    : Compiling entry function '_Z5plainPf' for 'sm_90a'
ptxas info    : Function properties for _Z5plainPf
ptxas         .     256 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 32 registers, used 0 barriers
 ptxas error   : Entry function 'calls' uses too much shared data (0x61a80 bytes, 0x38c00 max)
"""


def test_the_functions_that_a_kernel_calls_count():
    assert read_spills(LOG) == {"calls": 1124, "_Z5plainPf": 0}
    assert read_spills(LOG, is_linked=True) == {}  # another kernel may call the function
    assert read_spills(LOG.replace("1116 bytes", "0 bytes"), is_linked=True) == {"calls": 8, "_Z5plainPf": 0}
    assert read_spills("") == {}


def test_messages_are_kept_and_the_report_is_not():
    lines = LOG.splitlines()
    kept = [*lines[:3], lines[-1].strip()]
    assert without_report(LOG, ["-O3", "--ptxas-options=-O1", "-DV=-v"]).splitlines() == kept


@pytest.fixture(scope="module")
def cubin():
    return jitload.compile_cubin(SPILLS, arch=ARCH)


def test_spills_are_told_apart_from_local_arrays(cubin):
    spills = {kernel.name: (kernel.spill_bytes, kernel.local_bytes) for kernel in cubin.kernels}
    assert spills["plain"] == (0, 0)
    assert spills["local_array"] == (0, 256)
    assert spills["spilling"][0] > 0
    assert spills["spilling_function"][0] > 0
    assert cubin.log == ""


def test_the_report_costs_neither_code_nor_log(cubin):
    with_report = jitload.compile_cubin(SPILLS, arch=ARCH, extra_cuda_cflags=["-Xptxas=-v"])
    assert "bytes spill stores" in with_report.log
    assert with_report.data == cubin.data
    assert with_report.kernels == cubin.kernels


def test_ptx_and_code_that_was_compiled_elsewhere(cubin):
    linked = jitload.compile_cubin(cubin.ptx, arch=ARCH)
    assert linked.log == ""
    for kernels in (linked.kernels, read_cubin(cubin.data).kernels):  # a function that spills is linked to a kernel
        spills = {kernel.symbol: kernel.spill_bytes for kernel in kernels}
        assert spills == {"plain": 0, "spilling": None, "spilling_function": None, "local_array": None}
    without_function = re.sub(r"\.func.*?\n}|\.visible \.entry spilling_function.*?\n}", "", cubin.ptx, flags=re.DOTALL)
    kernels = jitload.compile_cubin(without_function, arch=ARCH).kernels
    spills = {kernel.symbol: kernel.spill_bytes for kernel in kernels}
    assert spills.pop("spilling") > 0
    assert spills == {"local_array": 0, "plain": 0}


def test_a_built_module_and_a_cached_one_show_spills(cache, cubin, monkeypatch):
    for origin in ("built in", "from the cache"):
        monkeypatch.setattr("jitload.pipeline._modules", {})
        module = jitload.load_inline("m", cuda_sources=SPILLS, arch=ARCH)
        assert f"m: {origin}" in module._repr_html_()
        assert module.spilling.kernel in cubin.kernels
        assert module.local_array.kernels[ARCH].spill_bytes == 0
        assert module._repr_html_().count(" B !</td>") == 2
