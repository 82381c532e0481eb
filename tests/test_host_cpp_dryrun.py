"""The commands that nvcc prints: kept, taken apart, and what happens where they are not understood."""

import json
import logging
import re
from pathlib import Path

import pytest
from builds import run_python
from support.nvcc import FILE, build_file, file_of, needs_nvcc, real_nvcc, script_of_nvcc

import jitload
from jitload.host_cpp import dryrun
from jitload.toolchain.nvcc import run_nvcc


@needs_nvcc
def test_a_hit_starts_no_nvcc_and_a_header_that_changed_builds_again(cache, tmp_path, monkeypatch):
    log = script_of_nvcc(tmp_path / "my nvcc", "| cat")
    monkeypatch.setenv("JITLOAD_NVCC", str(tmp_path / "my nvcc"))
    headers = tmp_path / "my $headers' (x)\""
    headers.mkdir()
    device = '#ifdef __CUDA_ARCH__\n#define NAME "device.h"\n#include NAME\n#else\n#define STEP 0\n#endif\n'
    text = '#include "value.h"\n' + device + FILE.replace("+= 1", "+= STEP")
    code = f"""if True:
    import jitload
    print(jitload.build("m", sources={str(file_of(tmp_path, text))!r}, arch="sm_90a",
                        extra_include_paths=[{str(headers)!r}]))"""
    starts, entries = [], []
    for value, step in ((7, 1), (7, 1), (81, 1), (81, 2)):  # only device code includes the step
        (headers / "value.h").write_text(f"#define VALUE {value}\n")
        (headers / "device.h").write_text(f"#define STEP {step}\n")
        result = run_python(code)
        assert (jitload.load_module(result.stdout.strip()).get(), result.stderr) == (value, "")
        starts.append(log.read_text().count("--dryrun -ccbin"))
        entries.append(len(list(cache.glob("m-*/*/m.so"))))
    assert starts == [1, 1, 1, 1]  # the commands are kept
    assert log.read_text().count("-MD") == 0  # they were understood
    assert entries == [1, 1, 2, 3]
    library = next(cache.glob("m-*/0000-*/m.so"))
    recorded = json.loads(library.with_name("manifest.json").read_text())["dependencies"]
    read = [file["path"] for file in recorded if file["size"] >= 0]
    assert "@0/value.h" in read
    assert not [path for path in read if "cuda" in path]
    left = {path.suffix for path in library.parent.iterdir()}
    assert left == {".cu", ".d", ".json", ".ninja", ".o", ".so"}


def printed_by_nvcc(directory: Path, *options: str) -> str:
    command = [str(real_nvcc().path), "--dryrun", *options, "-c", "jitload_unit.cu", "-o", "jitload_unit.cu.o"]
    return run_nvcc(command, directory=directory, variables={"TMPDIR": "."})


TARGETS = ("-gencode=arch=compute_80,code=sm_80", "-gencode=arch=compute_90a,code=sm_90a")


@needs_nvcc
def test_the_halves_of_a_compile_do_not_wait_for_each_other(tmp_path):
    template = dryrun._parse(printed_by_nvcc(tmp_path, *TARGETS), TARGETS)
    steps = {step.output: step for step in dryrun.template_steps(template, "f.cu")}

    def inputs(output: str) -> set[str]:
        """Return everything that an output is made from."""
        own = steps[output].inputs if output in steps else ()
        return {*own, *(name for file in own for name in inputs(file))}

    (host,) = (output for output in steps if output.endswith(".cudafe1.cpp"))
    cubins = [output for output in steps if output.endswith(".cubin")]
    assert len(cubins) == 2
    for part in (host, *cubins):
        assert not inputs(part) & {host, *cubins}
    assert {host, *cubins} < inputs("f.cu.o")
    words = [word for step in steps.values() for word in step.command]
    assert not [word for word in words if "tmpxft" in word or str(tmp_path) in word or "jitload_unit" in word]
    assert "--gen_module_id_file" not in words
    assert sum(word == "-MD" for word in words) == 3


@needs_nvcc
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda text: text + "nvcc warning : new\n", "the line 'nvcc warning : new'"),
        (lambda text: text.replace("cudafe++ ", "cudafe3 "), "the program 'cudafe3'"),
        (lambda text: text.replace("-3_jitload_unit", "-3_other"), "the temporary file "),
        (lambda text: text.replace(".compute_80.cpp1.ii", ".compute_90a.cpp1.ii"), "the temporary files "),
        (lambda text: re.sub("#[$] cudafe.*\n", "", text), "the programs "),
        (lambda text: re.sub("#[$] ptxas.*\n", "", text), "the programs "),
        (lambda text: text.replace('-o "jitload_unit.cu.o"', '-o "a.out"'), "the programs "),
        (lambda text: text.replace('.module_id" ', '.id.module_id" '), "the file 'jitload_unit.cu.id.module_id'"),
        (lambda text: text.replace("A=1", "A=2"), "the option '-DA=1', which is passed on in another form"),
        (lambda text: text.replace("cudafe++ ", "cudafe++ ' "), "No closing quotation"),
    ],
)
def test_what_is_not_understood_is_noticed(change, reason, tmp_path):
    options = ("-DA=1", *TARGETS)
    text = printed_by_nvcc(tmp_path, *options)
    assert dryrun._parse(text, options)
    assert change(text) != text
    with pytest.raises(dryrun._NotUnderstoodError, match=re.escape(reason)):
        dryrun._parse(change(text), options)


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
