"""Conditions and macros, as far as a text alone tells, in little time."""

import time

import pytest

from jitload.cpptext.lexer import tokenize
from jitload.cpptext.preprocessor import Macros, live_tokens, read_directives


def macros_of(text: str) -> Macros:
    macros = Macros()
    for directive in read_directives(text):
        macros.follow(directive, is_certain=False)
    return macros


CONDITIONS = {
    "#if N == 2 && defined(A)": True,
    "#if !defined A || N < 1": False,
    "#ifdef MAYBE": None,
    "#if MAYBE": None,
    "#if UNDONE": False,
    "#if CERTAIN == 1": None,
    "#if 010 == 8": None,
    "#if !N == 0": True,
    "#if (N > 1ull && N <= 0x10) != UNDONE": True,
    "#define T True\n#if T == 1": None,
    "#if definedA": False,
    "#define M ~N\n#if M": None,
    "#if N == '2'": None,
    "#if F(N)": None,
    "#if defined(NEVER) && !defined(A) || VERSION > 2": False,
    f"#if {'(' * 5000}0": None,
    "#if __RESERVED": None,
    "#if UNDONE && EITHER": True,
    "#if UNDONE && F(N)": None,
    "#if UNDONE && BOTH": False,
    "#if \N{KELVIN SIGN}": None,
    "#ifndef __CUDACC_RTC__": None,
}
DEFINITIONS = """\
#define N 2
#define A
#define EITHER N > 2 || N
#define BOTH N && N
#define F(x) x || N
#define \N{KELVIN SIGN} 1
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
    words = {token.text for token in live_tokens(tokenize(text), Macros())}
    expected = {True: {"first"}, False: {"second"}, None: {"first", "second"}}[CONDITIONS[condition]]
    assert words & {"first", "second"} == expected


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


def test_a_large_header_is_read_quickly():
    text = '// /* "a"\nasm("wgmma.mma_async" "r"(x)); /* b */\n' * 20000
    start = time.process_time()
    assert list(read_directives(text)) == []
    assert time.process_time() - start < 2
