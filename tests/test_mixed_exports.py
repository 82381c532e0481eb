"""What a text with kernels and host functions exports, and what is said if it cannot."""

import pytest
from support.nvcc import needs_nvcc

import jitload

KERNEL = "__global__ void one(float* x) { *x = 1; }\n"
MIXED = f"{KERNEL}void run_it(float* data, int count) {{ one<<<1, 1>>>(data); }}\n"


def build(source: str, functions: list[str] | None = None, **options: object) -> str:
    return jitload.build_inline("mixed", cuda_sources=source, functions=functions, arch="sm_90", **options)


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
