"""What a text with kernels and host functions exports, and what is said if it cannot."""

import pytest
from support.nvcc import needs_nvcc

import jitload
from jitload.errors import CompileError, LaunchSpecError
from jitload.host_cpp.functions import choose_host_exports, export_hint
from jitload.request.request import Call, make_request
from jitload.request.sources import inline_sources

KERNEL = "__global__ void one(float* x) { *x = 1; }\n"
MIXED = f"{KERNEL}void run_it(float* data, int count) {{ one<<<1, 1>>>(data); }}\n"


def build(source: str, functions: list[str] | None = None, **options: object) -> str:
    return jitload.build_inline("mixed", cuda_sources=source, functions=functions, arch="sm_90", **options)


@needs_nvcc
@pytest.mark.parametrize("options", [{}, {"kind": "mixed"}], ids=["found", "named"])
def test_a_library_without_functions_is_refused_before_nvcc_runs(options, monkeypatch):
    monkeypatch.setattr("jitload.host_cpp.library.run_ninja", None)
    with pytest.raises(LaunchSpecError) as caught:
        build(MIXED, **options)
    assert "'mixed' exports nothing by itself: the library would have no functions" in str(caught.value)
    assert "The host functions are: run_it. The kernels are: one." in str(caught.value)


@needs_nvcc
def test_exports_of_headers_macros_and_objects_count(monkeypatch, tmp_path):
    class CompilerRanError(Exception):
        pass

    def run(*_: object, **__: object) -> None:
        raise CompilerRanError

    monkeypatch.setattr("jitload.host_cpp.library.run_ninja", run)
    (tmp_path / "exports.h").write_text("#define EXPORT(f) TVM_FFI_DLL_EXPORT_TYPED_FUNC(f, f)\n")
    flag = "-DEXPORT(f)=TVM_FFI_DLL_EXPORT_TYPED_FUNC(f,f);"
    for source, options in (
        (f'#include "{tmp_path}/exports.h"\n{MIXED}EXPORT(run_it);\n', {}),
        (f"{MIXED}EXPORT(run_it)\n", {"extra_cuda_cflags": [flag]}),
        (MIXED, {"output": str(tmp_path / "mixed.o")}),
    ):
        with pytest.raises(CompilerRanError):
            build(source, **options)


@needs_nvcc
def test_a_typo_suggests_the_nearest_name():
    with pytest.raises(CompileError, match=r"has 'run_itt', which no source declares\. Did you mean 'run_it'\?"):
        build(MIXED, ["run_itt"])


LOGS = {
    "nvcc": 'any.h(582): error: class "tvm::ffi::TypeTraits<std::map<int, float>, void>" has no member "TypeStr"',
    "g++": "error: 'TypeStr' is not a member of 'tvm::ffi::TypeTraitsNoCR<std::map<int, float> >' "
    "{aka 'tvm::ffi::TypeTraits<std::map<int, float>, void>'}",
}


@pytest.mark.parametrize("log", LOGS.values(), ids=LOGS)
def test_a_type_that_cannot_be_passed_is_named(log):
    sources = inline_sources("m", MIXED)
    request = make_request(Call("m", sources, makes="library", arch="sm_90", functions=["run_it"]))
    hint = export_hint(f"{log}\nfunctions['run_it']:1: note", choose_host_exports(request), request)
    assert hint.startswith("'run_it' takes or returns std::map<int, float>, which cannot be passed from Python.")


def test_the_names_of_parameters_come_from_the_definition(tmp_path):
    (tmp_path / "ops.h").write_text("void f(float*, int);\nint g(int* a, int b);\nint h(int* only);\n")
    source = f"""#include "{tmp_path}/ops.h"
    void f(float* data, int count) {{ one<<<1, 1>>>(data); }}
    int g(int* left, int right = 3) {{ return *left + right; }}
    """
    sources = inline_sources("m", KERNEL + source)
    request = make_request(Call("m", sources, makes="library", arch="sm_90", functions=["f", "g", "h"]))
    names = {export.name: [c.parameters for c in export.candidates] for export in choose_host_exports(request)}
    assert names == {"f": [("data", "count")], "g": [("left", "right")], "h": [("only",)]}
