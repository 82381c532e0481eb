"""Directives, macros and conditions, as far as a text alone tells."""

import time

import pytest

from jitload.cpptext.lexer import code_tokens, tokenize
from jitload.cpptext.preprocessor import (
    Directive,
    Macros,
    included_headers,
    live_tokens,
    read_conditionals,
    read_directives,
    split_directives,
)


def macros_of(text: str) -> Macros:
    macros = Macros()
    for directive in read_directives(text):
        macros.follow(directive, is_certain=False)
    return macros


DIRECTIVES = {
    "#if A /* b */ && \\\n C // d\nint e;\n#\n  #  endif": [("if", "A   &&  C"), ("", ""), ("endif", "")],
    "#define F(a) a /* b\n */ + 1\n#undef F": [("define", "F(a) a   + 1"), ("undef", "F")],
    "int a; #if\n// #if\n/* /*\n#if\n*/": [],
    '/* a\n */ #include <b//c.h>\r\n#import "d.h"': [("include", "<b//c.h>"), ("import", '"d.h"')],
    'const char* s = "/*";\n#define A "//" // b\n#include </*>': [("define", 'A "//"'), ("include", "</*>")],
    '// /*\n#define A\n// */\nauto s = R"(\n/*)";\n#define B': [("define", "A"), ("define", "B")],
}


@pytest.mark.parametrize("text", DIRECTIVES)
def test_directives_are_read(text):
    assert list(read_directives(text)) == [Directive(*directive) for directive in DIRECTIVES[text]]


def test_directives_and_code_are_split():
    text = "int a; // b\n#if A(1) && B // c\n#define F (x)\nint\n#else\n"
    split = [(directive, [token.text for token in run]) for directive, run in split_directives(tokenize(text))]
    assert split == [
        (None, ["int", "a", ";", "// b"]),
        (Directive("if", "A(1) && B"), ["#", "if", "A", "(", "1", ")", "&", "&", "B", "// c"]),
        (Directive("define", "F (x)"), ["#", "define", "F", "(", "x", ")"]),
        (None, ["int"]),
        (Directive("else", ""), ["#", "else"]),
    ]


def test_included_headers_are_named():
    text = '#include "a.h"\n#include <b c.h>\n// #include "d.h"\n#include E\n#include_next <f.h>\n'
    assert list(included_headers(read_directives(text))) == [("a.h", True), ("b c.h", False), ("f.h", False)]


CONDITIONS = {
    "#if N == 2 && defined(A)": True,
    "#if 0x2 == N": True,
    "#if !defined A || N < 1": False,
    "#ifdef NEVER": False,
    "#ifdef MAYBE": None,
    "#if MAYBE": None,
    "#if UNDONE": False,
    "#ifdef CERTAIN": True,
    "#if CERTAIN == 1": None,
    "#if 010 == 8": None,
    "#  if  0": False,
    "#if false": False,
    "#if 0 || 1": True,
    "#if defined(NEVER) && !defined(A) || VERSION > 2": False,
    "#if 3 -": None,
    f"#if {'(' * 5000}0": None,
    "#if N(2)": None,
    "#if __RESERVED": None,
    "#ifndef __CUDACC_RTC__": None,
    "#ifdef": None,
    "#if": None,
}
DEFINITIONS = """\
#define N 2
#define A
#define UNDONE 1
#undef UNDONE
#define CERTAIN 1
#if _SOME
#define MAYBE 1
#define CERTAIN 2
#endif
"""


@pytest.mark.parametrize("condition", CONDITIONS)
def test_conditions_are_decided_where_the_text_tells(condition):
    text = f"{DEFINITIONS}{condition}\nfirst\n#else\nsecond\n#endif\n"
    words = {token.text for token in live_tokens(code_tokens(text), Macros())}
    expected = {True: {"first"}, False: {"second"}, None: {"first", "second"}}[CONDITIONS[condition]]
    assert words & {"first", "second"} == expected


def test_branches_are_decided_one_by_one():
    text = f"{DEFINITIONS}#if MAYBE\nfirst\n#elif NEVER\nsecond\n#elif true\nthird\n#else\nfourth\n#endif\n"
    text += "#if 0\n#if A\nfifth\n#else\nsixth\n#endif\nseventh\n#endif\n"
    words = [token.text for token in live_tokens(code_tokens(text), Macros())]
    assert [word for word in words if word.endswith(("st", "nd", "rd", "th"))] == ["first", "third"]


def test_a_header_may_define_any_other_name():
    text = '#define A 0\n#include "x.h"\n#if A\nno\n#endif\n#if B\nyes\n#endif\n'
    assert {"no", "yes"} & {token.text for token in live_tokens(code_tokens(text), Macros())} == {"yes"}


EXPANSIONS = {
    "NAME": ('#define NAME "a.h"', ['"a.h"']),
    "UNKNOWN": ("", ["UNKNOWN"]),
    "STR(DIR/x-1.h)": ("#define STR(x) STR_(x)\n#define STR_(x) #x\n#define DIR lib", ['"lib/x-1.h"']),
    "STR_(DIR/x.h)": ("#define STR_(x) #x\n#define DIR lib", ['"DIR/x.h"']),
    "FILE(sm)": ("#define FILE(name) STR(name##_90.h)\n#define STR(x) #x", ['"sm_90.h"']),
    "<DIR/x.h>": ("#define DIR A/B\n#define A a\n#define B b", ["<a/b/x.h>"]),
    "TWO": ('#if X\n#define TWO "a.h"\n#else\n#define TWO "b.h"\n#endif', ['"a.h"', '"b.h"']),
    "F(a, b)": ("#define F(...) STR(__VA_ARGS__)\n#define STR(x, y) #x/#y", ['"a"/"b"']),
    "F G(1)": ("#define F() 1\n#define G() 2", ["F 2"]),
    "SELF": ("#define SELF OTHER\n#define OTHER SELF", ["SELF"]),
}


@pytest.mark.parametrize("text", EXPANSIONS)
def test_macros_are_expanded(text):
    definitions, expansions = EXPANSIONS[text]
    assert macros_of(definitions).expansions(text) == expansions


@pytest.mark.parametrize(
    "definitions",
    [
        "\n".join(f"#define A{n} A{n + 1} A{n + 1}" for n in range(40)),
        "\n".join(f"#define A{n} A{n + 1} {choice}" for n in range(20) for choice in "ab"),
        f"#define A0 {'B ' * 3000}\n#define B 1\n",
    ],
)
def test_expansions_without_end_are_given_up(definitions):
    assert macros_of(definitions).expansions("A0") is None


def test_conditionals_outside_of_if_0_are_read():
    text = "#if A\nint x;\n#elif B\n#else\n#define C\n#pragma once\n#endif\n#if 0\n#if D\n#endif\n#endif\n#if E\n"
    ((conditional, _),) = read_conditionals(code_tokens(text))
    assert conditional.line == 1
    assert conditional.conditions == [("if", "A"), ("elif", "B"), ("else", "")]
    assert conditional.sizes == [3, 0, 1]


def test_a_large_header_is_read_quickly():
    text = '// /* "a"\nasm("wgmma.mma_async" "r"(x)); /* b */\n' * 20000
    start = time.process_time()
    assert list(read_directives(text)) == []
    assert time.process_time() - start < 2
