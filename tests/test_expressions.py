"""Launch expressions as text: what is written for them, and what is refused."""

import re
import warnings

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from jitload.errors import LaunchSpecError
from jitload.expressions.compiler import ScopeEntry, compile_expression

SCOPE = {
    "x": ScopeEntry(position=0, kind="tensor", type="const float*"),
    "n": ScopeEntry(position=2, kind="int", type="int"),
    "in_": ScopeEntry(position=3, kind="int", type="bool"),
    "k": ScopeEntry(position=-1, kind="int", type="int", computed=4),
    "scale": ScopeEntry(position=5, kind="other", type="float"),
    "é": ScopeEntry(position=6, kind="int", type="int"),
    "key": ScopeEntry(position=7, kind="tensor", type="const float*", is_nullable=True),
}
TOO_DEEP = "the expression is nested more than 50 deep"


def compiled(text: int | str) -> str:
    """Return the steps of an expression, such as `INT 2, CONSTANT 256, CEIL_DIV`."""
    ops = compile_expression(text, SCOPE, kernel="add", field="grid[0]")
    return ", ".join(" ".join(map(str, filter(None, (op.name, op.operand, op.value)))) for op in ops)


def refusal(text: int | str) -> LaunchSpecError:
    with pytest.raises(LaunchSpecError) as caught:
        compiled(text)
    assert (caught.value.kernel, caught.value.field) == ("add", "grid[0]")
    return caught.value


@pytest.mark.parametrize(
    ("text", "problem", "column"),
    [
        ("", "the expression is empty", None),
        ("n +", "this is not an expression: invalid syntax", 3),
        ("n / 2", "'n / 2' is not part of launch expressions", 0),
        ("1 + (n & 2)", "'n & 2' is not part of launch expressions", 5),
        ("key == None", "'key' is a tensor, not an integer", 0),
        ("n is None", "'n' is never None", 0),
        ("1 + (x is not None)", "'x' is never None", 5),
        ("m is None", "there is no parameter 'm'", 0),
        ("1.5 * n", "1.5 is not an integer", 0),
        ("n.real", "'n' is not a tensor and has no .real", 0),
        ("k + scale", "'scale' is a 'float' parameter, not an integer", 4),
        ("x + 1", "'x' is a tensor, not an integer", 0),
        ("1if n else 2", "1if is not an integer", 0),
        ("x.shape", ".shape alone is not an integer", 0),
        ("x.stride()[0]", "only .shape can be indexed", 0),
        ("x.data_ptr()", "a tensor has no method 'data_ptr' here", 0),
        ("x.size()", "size() takes one axis, got 0", 0),
        ("x.size(dim=0)", "expressions take only positional arguments", 11),
        ("__import__(n)", "there is no function '__import__'", 0),
        ("min(n)", "min() takes two or more integers, got 1", 0),
        ("(n, 1)", "'(n, 1)' is not part of launch expressions", 0),
        ("n + '1'", "a string is not part of launch expressions", 4),
        ("n\0", "the character '\\x00' is not part of launch expressions", 1),
        ("n\ud800", "the expression is not valid Unicode: it contains a lone surrogate", None),
        ("é + n / 2", "'n / 2' is not part of launch expressions", 4),
        ("9223372036854775808", "the integer does not fit 64 bits", 0),
        ("n + 4 // 0", "division by zero", 6),
        ("next_power_of_2(4611686018427387905)", "the result, 9223372036854775808, does not fit 64 bits", 0),
        ("n" * 1001, "the expression has 1001 characters; at most 1000 are allowed", None),
        ("+".join(["n"] * 51), TOO_DEEP, None),
        ("(" * 499 + "n" + ")" * 499, TOO_DEEP, None),
    ],
)
def test_other_code_is_refused_at_its_column(text, problem, column):
    error = refusal(text)
    assert (error.problem, error.column) == (problem, column)


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("n / 2", "Use // to round down, or ceil_div(a, b) to round up."),
        ("cdiv(n, 2)", "Use ceil_div(a, b)."),
        ("(n, 2)", 'Several dimensions are a tuple of expressions: ("a", "b").'),
        ("in + 1", "A parameter named 'in' is written in_ in expressions."),
        ("m", "The names here are x, n, in_, k, scale, é, key."),
    ],
)
def test_a_refusal_says_what_to_write_instead(text, hint):
    assert refusal(text).hint == hint


def test_a_message_has_the_expression_and_a_caret():
    assert refusal("n + m").message() == (
        "kernel 'add', grid[0]: there is no parameter 'm'\n"
        "    n + m\n"
        "        ^\n"
        "    The names here are x, n, in_, k, scale, é, key."
    )


def test_message_of_a_long_text_is_short():
    assert len(str(refusal("n" * 10**6))) < 300


PIECES = st.sampled_from(
    ["n", "x", ".shape", "[", "]", "(", ")", "+", "-", "/", "1", "9" * 19, "if", "else", " ", "min", ",", "lambda:",
     "'", "#", "\\", "\0", "\n", "{", "}", ":=", "<", "and", "0x", "é", "1if", "'\\d'", "*", "=", "`", "__class__"]
)  # fmt: skip


@settings(max_examples=100)
@given(st.one_of(st.text(max_size=60), st.lists(PIECES, max_size=25).map("".join)))
@example("n;system(0)")
def test_any_text_is_refused_or_made_safe(text):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            code = compiled(text)
        except LaunchSpecError as error:
            assert error.problem in str(error)
        else:
            assert re.fullmatch(r"[A-Z0-9_, -]*", code)
