"""Launch expressions as text: what is written for them, and what is refused."""

import re
import warnings

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from jitload.errors import LaunchSpecError
from jitload.expressions.compiler import ScopeEntry, check_expression, compile_expression
from jitload.expressions.parse import LANGUAGE

SCOPE = {
    "x": ScopeEntry(position=0, kind="tensor", type="const float*"),
    "n": ScopeEntry(position=2, kind="int", type="int"),
    "in_": ScopeEntry(position=3, kind="int", type="bool"),
    "k": ScopeEntry(position=-1, kind="int", type="int", computed=4),
    "scale": ScopeEntry(position=5, kind="other", type="float"),
    "é": ScopeEntry(position=6, kind="int", type="int"),
    "key": ScopeEntry(position=7, kind="tensor", type="const float*", is_nullable=True),
}
TENSOR = "A tensor has .numel(), .size(i), .shape[i], .stride(i), .ndim and .dim()."
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
        (" \n", "the expression is empty", None),
        ("n +", "this is not an expression: invalid syntax", 3),
        ("(n", "this is not an expression: '(' was never closed", 0),
        ("n / 2", "/ is not part of launch expressions", 2),
        ("(n) ** (2)", "** is not part of launch expressions", 4),
        ("n << 2", "<< is not part of launch expressions", 2),
        ("n >> 2", ">> is not part of launch expressions", 2),
        ("1 + (n & 2)", "& is not part of launch expressions", 7),
        ("n | 2", "| is not part of launch expressions", 2),
        ("n ^ 2", "^ is not part of launch expressions", 2),
        ("n @ 2", "@ is not part of launch expressions", 2),
        ("1 + ~n", "~ is not part of launch expressions", 4),
        ("n in x", "in is not part of launch expressions", 0),
        ("n is not k", "is not is not part of launch expressions", 0),
        ("key is None is None", "is is not part of launch expressions", 0),
        ("key == None", "'key' is a tensor, not an integer", 0),
        ("n is None", "'n' is never None", 0),
        ("1 + (x is not None)", "'x' is never None", 5),
        ("m is None", "there is no parameter 'm'", 0),
        ("1.5 * n", "1.5 is not an integer", 0),
        ("n + .5", ".5 is not an integer", 4),
        ("n * 1e3", "1e3 is not an integer", 4),
        ("n + 2j", "2j is not an integer", 4),
        ("1if n else 2", "1if is not an integer", 0),
        ("0x1for x in n", "0x1for is not an integer", 0),
        ("007", "007 is not an integer", 0),
        ("5 .real", "only a tensor has .real", 0),
        ("(n + 1).real", "only a tensor has .real", 0),
        ("n.real", "'n' is not a tensor and has no .real", 0),
        ("n.shape[0]", "'n' is not a tensor and has no .shape", 0),
        ("k + scale", "'scale' is a 'float' parameter, not an integer", 4),
        ("x + 1", "'x' is a tensor, not an integer", 0),
        ("x.shape", ".shape alone is not an integer", 0),
        ("1 + x.numel", ".numel alone is not an integer", 4),
        ("x.data_ptr()", "a tensor has no method 'data_ptr' here", 0),
        ("x.ndim()", "a tensor has no method 'ndim' here", 0),
        ("x.size()", "size() takes one axis, got 0", 0),
        ("x.stride(0, 1)", "stride() takes one axis, got 2", 0),
        ("x.numel(0)", "numel() takes no argument, got 1", 0),
        ("x.size(dim=0)", "expressions take only positional arguments", 11),
        ("x.shape[0:1]", "a slice is not part of launch expressions", 8),
        ("x[0]", "only .shape can be indexed", 0),
        ("x.stride()[0]", "only .shape can be indexed", 0),
        ("m + 1", "there is no parameter 'm'", 0),
        ("y.numel()", "there is no parameter 'y'", 0),
        ("abs(n)", "there is no function 'abs'", 0),
        ("__import__(n)", "there is no function '__import__'", 0),
        ("n(1)(2)", "only functions can be called", 0),
        ("min(n)", "min() takes two or more integers, got 1", 0),
        ("max()", "max() takes two or more integers, got 0", 0),
        ("ceil_div(n)", "ceil_div() takes two integers, got 1", 0),
        ("next_power_of_2(n, 2)", "next_power_of_2() takes one integer, got 2", 0),
        ("min(*n, 1)", "expressions take only positional arguments", 4),
        ("min(n, 1, key=k)", "expressions take only positional arguments", 14),
        ("min(n, 1, **k)", "expressions take only positional arguments", 12),
        ("(n, 1)", "a tuple is not part of launch expressions", 0),
        ("[n]", "a list is not part of launch expressions", 0),
        ("{n}", "a set is not part of launch expressions", 0),
        ("{}", "a dict is not part of launch expressions", 0),
        ("max(i for i in n)", "max() takes two or more integers, got 1", 0),
        ("[i for i in n]", "a comprehension is not part of launch expressions", 0),
        ("lambda: n", "lambda is not part of launch expressions", 0),
        ("(n := 5)", ":= is not part of launch expressions", 1),
        ("None", "None is not part of launch expressions", 0),
        ("n + ...", "... is not part of launch expressions", 4),
        ("n + '1'", "a string is not part of launch expressions", 4),
        ('f"{n}"', "a string is not part of launch expressions", 1),
        ("n # all of them", "a comment is not part of launch expressions", 2),
        ("n \\\n+ 1", "the character '\\\\' is not part of launch expressions", 2),
        ("n\0", "the character '\\x00' is not part of launch expressions", 1),
        ("n\ud800", "the expression is not valid Unicode: it contains a lone surrogate", None),
        ("é + n / 2", "/ is not part of launch expressions", 6),
        ("9223372036854775808", "the integer does not fit 64 bits", 0),
        ("- -9223372036854775808", "the result, 9223372036854775808, does not fit 64 bits", 0),
        ("n + 4 // 0", "division of 4 by zero", 6),
        ("n % (2 - 2)", "division by zero", 2),
        ("2 if ceil_div(1, 0) else n", "division of 1 by zero", 5),
        ("9223372036854775807 + 1", "the result, 9223372036854775808, does not fit 64 bits", 20),
        ("next_power_of_2(4611686018427387905)", "the result, 9223372036854775808, does not fit 64 bits", 0),
        ("1 and 5 // 0", "division of 5 by zero", 8),
        ("0 or 1 and 5 // 0 or n", "division of 5 by zero", 13),
        ("n" * 1001, "the expression has 1001 characters; at most 1000 are allowed", None),
        ("+".join(["n"] * 51), TOO_DEEP, None),
        ("(" * 499 + "n" + ")" * 499, TOO_DEEP, None),
        ("-" * 999 + "n", TOO_DEEP, None),
        ("not " * 249 + "n", TOO_DEEP, None),
        ("x.shape[" * 60 + "0" + "]" * 60, TOO_DEEP, None),
        ("n if n else " * 80 + "n", TOO_DEEP, None),
        ("x" + ".a" * 499, "only a tensor has .a", 0),
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
        ("triton.cdiv(n, 2)", "Use ceil_div(a, b)."),
        ("(n, 2)", 'Several dimensions are a tuple of expressions: ("a", "b").'),
        ("n is 2", "Use ==, or x is None for a pointer that may be None."),
        ("n is None", "Only pointers in Launch.nullable, and optional arguments in a schema of torch, may be None."),
        ("in + 1", "A parameter named 'in' is written in_ in expressions."),
        ("m", "The names here are x, n, in_, k, scale, é, key."),
        ("x", TENSOR),
        ("n ** 2", LANGUAGE),
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


def test_the_hint_for_a_kernel_without_parameters_says_so():
    with pytest.raises(LaunchSpecError) as caught:
        compile_expression("n", {}, kernel="add", field="grid")
    assert caught.value.hint == "The kernel has no parameters."


def test_fifty_operators_are_allowed():
    assert compiled("+".join(["n"] * 50)).count("ADD") == 49


def test_the_names_in_an_expression_are_known():
    assert check_expression("min(n, x.shape[k]) + (1 if m else max) or a < b", "grid")[1] == {
        "n",
        "x",
        "k",
        "m",
        "max",
        "a",
        "b",
    }
    assert check_expression("0 and n", "grid")[1] == {"n"}


def test_a_constant_expression_has_a_value():
    assert check_expression("4 * 64", "block")[0] == 256
    assert check_expression("4 * n", "block")[0] is None
    with pytest.raises(LaunchSpecError, match="block: / is not part"):
        check_expression("n / 2", "block")


PIECES = st.sampled_from(
    ["n", "x", ".shape", "[", "]", "(", ")", "+", "-", "/", "1", "9" * 19, "if", "else", " ", "min", ",", "lambda:",
     "'", "#", "\\", "\0", "\n", "{", "}", ":=", "<", "and", "0x", "é", "1if", "'\\d'", "*", "=", "`", "__class__"]
)  # fmt: skip


@settings(max_examples=150)
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
