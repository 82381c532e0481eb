"""Tokens of C++ text with their lines, and texts without comments."""

import pytest

from jitload.cpptext.lexer import code_tokens, has_matching_brackets, strip_comments, tokenize


def test_lines_are_the_users_own():
    text = 'a \\\n b\n/* 3\n4 */ c "x" \\\n d // \\\n still 6\ne R"(\n8)" f'
    lines = {token.text: (token.line, token.end_line) for token in tokenize(text)}
    assert {name: lines[name] for name in "abcdef"} == {
        "a": (1, 1),
        "b": (2, 2),
        "c": (4, 4),
        "d": (5, 5),
        "e": (7, 7),
        "f": (8, 8),
    }
    assert lines["/* 3\n4 */"] == (3, 4)


COMMENTS = {
    "int a; // b \\\n c\nint d;": "int a;  \nint d;",
    "a /* b\n c */ d /* e": "a   d  ",
    'f("/*", \'"\', "\\\\"); // g': 'f("/*", \'"\', "\\\\");  ',
    'u8R"x(/* )" )x" /* a */': 'u8R"x(/* )" )x"  ',
    "int n = 1'000 /* a */, m = 0x1'f; // '": "int n = 1'000  , m = 0x1'f;  ",
    "u'/' L'\\'' /**/ '/*'": "u'/' L'\\''   '/*'",
    "#include <a//b.h> // c\n a</*b*/c": "#include <a//b.h>  \n a< c",
    'x = R"(//)" BAR"(//)";': 'x = R"(//)" BAR"(//)";',
}


@pytest.mark.parametrize("text", COMMENTS)
def test_comments_are_stripped(text):
    assert strip_comments(text) == COMMENTS[text]


@pytest.mark.parametrize("text", [text for text in COMMENTS if "#" not in text])
def test_a_text_without_its_comments_has_the_same_tokens(text):
    kinds = [(token.kind, token.text) for token in code_tokens(text)]
    assert [(token.kind, token.text) for token in tokenize(strip_comments(text))] == kinds


@pytest.mark.parametrize(
    ("text", "matches"),
    [
        ("void f() { x[(1)] = {}; } // (", True),
        ("const char* s = \"(\"; char c = '{'; /* [ */", True),
        ("f(}", False),
        ("f(", False),
        (")(", False),
        ('const char* s = R"a()")a" [', False),
    ],
)
def test_brackets_match_outside_comments_and_literals(*, text, matches):
    assert has_matching_brackets(text) is matches
