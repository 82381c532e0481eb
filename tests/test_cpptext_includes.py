"""Headers: which ones a build reads, and that a change in one gives a new build."""

import os
from pathlib import Path

import pytest
from builds import ADD, build, load

from jitload.cpptext.includes import IncludeScan

HOW_HEADERS_ARE_FOUND = ["include path", "flag", "full name", "pre-include"]


def read_headers(texts, include_dirs, known_dirs):
    return IncludeScan(texts, include_dirs).headers(known_dirs)


@pytest.mark.parametrize("how", HOW_HEADERS_ARE_FOUND)
def test_a_changed_header_gives_a_new_build(how, tmp_path):
    inner, outer = tmp_path / "inner.h", tmp_path / "outer.h"
    outer.write_text('#include "inner.h"\n')
    text = 'extern "C" __global__ void NAME() {}\n'
    options = {
        "include path": {"extra_include_paths": [tmp_path]},
        "flag": {"extra_cuda_cflags": [f"-I{tmp_path}"]},
        "full name": {},
        "pre-include": {"extra_cuda_cflags": ["-include", str(outer)]},
    }[how]
    if how != "pre-include":
        text = f'#include "{outer if how == "full name" else "outer.h"}"\n{text}'
    modules = []
    for name in ("one", "two", "one"):
        inner.write_text(f"#define NAME {name}\n")
        modules.append(load(text, f"headers by {how}", **options))
    assert [list(module) for module in modules] == [["one"], ["two"], ["one"]]
    assert Path(build(text, f"headers by {how}", **options)).parent.parent.is_dir()


def test_an_edit_that_keeps_size_and_time_is_seen(tmp_path):
    header = tmp_path / "name.h"
    names = []
    for name in ("one", "two"):
        header.write_text(f"#define NAME {name}\n")
        os.utime(header, ns=(10**18, 10**18))
        names += load('#include "name.h"\nextern "C" __global__ void NAME() {}', extra_include_paths=[tmp_path])
    assert names == ["one", "two"]


def test_includes_are_followed_in_the_text(tmp_path):
    for name, text in {
        "a.h": '#include_next <b.h>\n  #  include "sub/c.h"',
        "b.h": '/* #include <no.h> */ // #include "no.h"',
        "sub/c.h": '#include "d.h"\r\n#include FILE',
        "sub/d.h": '#include "../a.h"\n#define FILE "by_macro.h"',
        "by_macro.h": "",
        "no.h": "",
        "own/cuda_fp16.h": "",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    own = tmp_path / "own"
    headers = read_headers(['#include "a.h"\n#include <cuda_fp16.h>'], [tmp_path, own], [own])
    names = {str(path.resolve().relative_to(tmp_path)) for path in headers if path.is_file()}
    assert names == {"a.h", "b.h", "sub/c.h", "sub/d.h", "by_macro.h"}
    assert read_headers([f'#include "{tmp_path / "b.h"}"'], [], []) == (tmp_path / "b.h",)


def test_a_header_that_appears_before_the_one_that_was_read_is_seen(tmp_path):
    first, last = tmp_path / "first", tmp_path / "last"
    text = '#include "name.h"\n#if __has_include("more.h")\n#define NAME more\n#endif\n'
    text += 'extern "C" __global__ void NAME() {}'
    names = []
    for path, line in ((last / "name.h", "#define NAME one"), (first / "name.h", "#define NAME two")):
        path.parent.mkdir()
        path.write_text(line)
        names += load(text, "appears", extra_include_paths=[first, last])
    (last / "more.h").write_text("")
    (first / "name.h").write_text("")
    names += load(text, "appears", extra_include_paths=[first, last])
    assert names == ["one", "two", "more"]


@pytest.mark.parametrize(
    "text",
    [
        '/* see\n*/ #include "w.h"',
        'const char* s = "/*";\n#include "w.h"\n//*/',
        "int n = 1'000, c = '\"'; // don't \"\n#include \"w.h\"",
        'const char* s = R"x(" /* )x";\n#include "w.h"',
        '#define HAS(x) __has_include(x)\n#if HAS("w.h")\n#endif',
    ],
)
def test_comments_hide_no_include(text, tmp_path):
    (tmp_path / "w.h").write_text("")
    assert read_headers([text], [tmp_path], []) == (tmp_path / "w.h",)
    assert read_headers([f"/* a\n {text.replace('*/', '')}\n*/"], [tmp_path], []) == ()


def test_macros_are_expanded_in_the_names_of_headers(tmp_path):
    (tmp_path / "lib").mkdir()
    for name, text in {
        "macros.h": "#define FIRST <DIR/a.h>\n",
        "lib/a.h": '#define NEXT "lib/b.h"\n#define LAST <lib/c.h>\n',
        "lib/b.h": "#define LAST <lib/d.h>\n",
        "lib/c.h": "",
        "lib/d.h": "",
    }.items():
        (tmp_path / name).write_text(text)
    text = '#define DIR lib\n#include "macros.h"\n#include FIRST\n#include NEXT\n#include LAST\n'
    headers = read_headers([text], [tmp_path], [])
    names = ["lib/a.h", "lib/b.h", "lib/c.h", "lib/d.h", "macros.h"]
    assert headers == tuple(tmp_path / name for name in names)
    text += "#define ARCH <lib/__CUDA_ARCH__.h>\n#include ARCH\n"  # which only the compiler knows
    text += "#define STR(x) #x\n#include STR(lib/a.h)\n#if __has_include(STR(STR(lib/b.h)))\n#endif\n"
    built_each_time = {Path("#include ARCH"), Path("#include STR(lib/a.h)"), Path("#__has_include STR")}
    assert built_each_time < {*read_headers([text], [tmp_path], [])}


@pytest.mark.parametrize(
    ("definitions", "expected"),
    [
        ("#define H <DIR/a.h>\n#define DIR(x) x", {"#include H"}),
        ("#define H <D##IR/a.h>", {"#include H"}),
        ("#define H <lib/DIRa.h>\n#define DIRa b\n#if X\n#define DIRa\n#endif", {"/lib/b.h", "/lib/.h"}),
        ("#define H <lib/1DIR/a'DIR'.h>\n#define DIR sub", {"/lib/1DIR/a'DIR'.h"}),
    ],
)
def test_headers_whose_names_macros_make_are_the_compilers_or_built_each_time(definitions, expected):
    assert {*map(str, read_headers([f"{definitions}\n#include H"], [Path("/")], []))} == expected


@pytest.mark.parametrize("include", ['#include "cudnn.h"', "#define STR(x) #x\n#include STR(cudnn.h)"])
def test_a_header_of_the_users_takes_the_place_of_one_of_jitloads(include, tmp_path):
    (tmp_path / "cudnn.h").write_text("#define NAME own\n")
    text = f'{include}\nextern "C" __global__ void NAME() {{}}'
    assert list(load(text, extra_include_paths=[tmp_path])) == ["own"]


def test_what_includes_an_unknown_macro_is_built_each_time(tmp_path):
    assert read_headers(["#include MYSTERY"], [tmp_path], []) == (Path("#include MYSTERY"),)
    header = tmp_path / "known.h"
    header.write_text("")
    assert read_headers(["#include MYSTERY", f'#define MYSTERY "{header}"'], [], []) == (header,)
    text = "#ifdef NEVER\n#include MYSTERY\n#endif\n" + ADD
    assert build(text) != build(text)
