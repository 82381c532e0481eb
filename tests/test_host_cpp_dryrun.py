"""The commands that nvcc prints: kept, taken apart, and what happens where they are not understood."""

import json
import logging

from builds import run_python
from support.nvcc import FILE, build_file, file_of, needs_nvcc, script_of_nvcc

import jitload


@needs_nvcc
def test_a_hit_starts_no_nvcc_and_a_header_that_changed_builds_again(cache, tmp_path, monkeypatch):
    log = script_of_nvcc(tmp_path / "my nvcc", "| cat")
    monkeypatch.setenv("JITLOAD_NVCC", str(tmp_path / "my nvcc"))
    headers = tmp_path / "my headers"
    headers.mkdir()
    device = '#ifdef __CUDA_ARCH__\n#define NAME "device.h"\n#include NAME\n#else\n#define STEP 0\n#endif\n'
    text = '#include "value.h"\n' + device + FILE.replace("+= 1", "+= STEP")
    code = f"""if True:
    import jitload
    print(jitload.build("m", sources={str(file_of(tmp_path, text))!r}, arch="sm_90a",
                        extra_include_paths=[{str(headers)!r}]))"""
    starts, entries = [], []
    for value, step in ((7, 1), (7, 1), (7, 2)):  # only device code includes the step
        (headers / "value.h").write_text(f"#define VALUE {value}\n")
        (headers / "device.h").write_text(f"#define STEP {step}\n")
        result = run_python(code)
        assert (jitload.load_module(result.stdout.strip()).get(), result.stderr) == (value, "")
        starts.append(log.read_text().count("--dryrun -ccbin"))
        entries.append(len(list(cache.glob("m-*/*/m.so"))))
    assert starts == [1, 1, 1]  # the commands are kept
    assert log.read_text().count("-MD") == 0  # they were understood
    assert entries == [1, 1, 2]
    library = next(cache.glob("m-*/0000-*/m.so"))
    recorded = json.loads(library.with_name("manifest.json").read_text())["dependencies"]
    read = [file["path"] for file in recorded if file["size"] >= 0]
    assert "@0/value.h" in read
    assert not [path for path in read if "cuda" in path]
    left = {path.suffix for path in library.parent.iterdir()}
    assert left == {".cu", ".d", ".json", ".ninja", ".o", ".so"}


@needs_nvcc
def test_where_nothing_is_understood_nvcc_compiles_as_a_whole(cache, tmp_path, monkeypatch, caplog):
    log = script_of_nvcc(tmp_path / "nvcc", "| sed 's/cudafe++/cudafe3/'")
    monkeypatch.setenv("JITLOAD_NVCC", str(tmp_path / "nvcc"))
    caplog.set_level(logging.DEBUG, logger="jitload.host_cpp.dryrun")
    header = tmp_path / "a $1" / "value.h"
    header.parent.mkdir()
    header.write_text("#define VALUE 9\n")
    library = build_file(
        file_of(tmp_path, '#include "value.h"' + FILE), extra_include_paths=[header.parent], extra_cuda_cflags=[]
    )
    assert jitload.load_module(library).get() == 9
    assert "jitload does not understand this in the output of --dryrun: the program 'cudafe3'" in caplog.text
    assert log.read_text().count("-MD") == 1
    recorded = json.loads(library.with_name("manifest.json").read_text())["dependencies"]
    assert "@0/value.h" in [file["path"] for file in recorded if file["size"] >= 0]
