"""A source and its kernels in, the C++ text out that the host's compiler gets for the CPU."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise

from jitload.cpu.gpu_only import mark_gpu_only
from jitload.cpu.object_file import TABLE
from jitload.cpu.split import Split, split_expression
from jitload.device import probe
from jitload.device.kernels import DeviceSource, join_pieces

BY_SYMBOL = "symbol "  # begins the "expression" of a kernel that C++ has no words for: its symbol and its parameters
_ROW = "__jitload_row_"  # begins the name of the macro that makes a row
ROWS = "<kernels>"  # the file name of the table's rows in messages
# Defined: a probe whose types are local to the source cannot be left open.
_PROBES = re.sub(r"#pragma.*\n", "", probe.PROBE_HEADER[1]).replace(
    "__global__ void __jitload_probe();", "void __jitload_probe() {}"
)
_DEFINED = re.compile(r"-([DU])\s*(\w+)((?:\([^)]*\))?)(?:=(.*))?", re.DOTALL)
# What C's own headers declare beside the arithmetic: a kernel may have any of these names, as it may for NVRTC.
_C_NAMES = frozenset(
    """
    abort access atexit atof atoi atol basename bcmp bcopy bzero calloc clearenv ctime daylight difftime div
    dprintf drem exit fclose fcvt feof ferror fflush ffs fgetc fgetpos fgets fileno flockfile fmemopen fopen
    fputc fputs fread freopen fscanf fseek ftell fwrite gamma gammaf gcvt getc getchar getdate getdelim getenv
    getline gets getsubopt getw gmtime index initstate labs ldiv link llabs lldiv localtime mblen mktemp
    mktime perror popen pow10 putc putchar putenv puts putw qsort raise rand random realpath remove rename
    rewind rindex scale scanf secure_getenv seed select setbuf setenv setstate signal significand srand
    srandom step stime strdup strfry strsep strsignal system tempnam time timegm timezone tmpfile tmpnam
    tzname tzset ungetc unsetenv wait
    """.split()  # noqa: SIM905  as a list it would take the whole page
)
_OTHER_HEADER = re.compile(r"#[ \t]*include[ \t]*<(?!cuda|cooperative)")  # C++'s own name C's functions again
# A type of C's that the source declares itself.
_OWN_TYPE = re.compile(r"\b(?:typedef\b[^;{}]*?|using\s+)\b(u?int(?:8|16|32|64|max|ptr)_t|u(?:int|short|long))\s*[;=]")
# Words by which a thread may look at memory again and again until another one changes it.
_LOOKS_AGAIN = re.compile(r"(?<!asm )(?<!__asm__ )\bvolatile\b|\batomic_ref\b|\batomic\s*<|\batomic_thread_fence\b")


def cpu_text(source: DeviceSource, expressions: Sequence[str], split: Split | None = None) -> str:
    """Return what the compiler gets: the user's text under its own lines, and a row for each kernel.

    Args:
        source: The source.
        expressions: Its kernels.
        split: The source with second forms of kernels in it, where there are any.
    """
    texts = [text for _, text in source.pieces]
    has_c_headers = any(_OTHER_HEADER.search(text) for text in texts)
    words = set() if has_c_headers else _C_NAMES & set(re.findall(r"\w+", " ".join(texts)))
    hidden = sorted(words | {name for text in texts for name in _OWN_TYPE.findall(text)})
    head = [
        *(f"#define {name} __jitload_c_{name}" for name in hidden),
        '#include "jitload_cpu.h"',
        *(f"#undef {name}" for name in hidden),
        *preprocessor_lines(source.cpu_flags),
        "#include <assert.h>",  # it asks for NDEBUG
    ]
    pieces = join_pieces((label, mark_gpu_only(text)) for label, text in (split.pieces if split else source.pieces))
    forms = _forms(expressions, split)
    table = "".join(
        (
            *(_declaration(number, text) for number, text in enumerate(expressions, 1) if text.startswith(BY_SYMBOL)),
            *(_form(number, *forms[text]) for number, text in enumerate(expressions, 1) if text in forms),
            f'extern "C" const jitload_cpu_kernel {TABLE}[] = {{\n',
            *(_row(number, text, has_form=text in forms) for number, text in enumerate(expressions, 1)),
            "};\n",
        )
    )
    return "\n".join([*head, f"{_PROBES}{pieces}{table if expressions else ''}"])


def _declaration(number: int, text: str) -> str:
    symbol, _, parameters = text.removeprefix(BY_SYMBOL).partition("(")
    return f'#line {number} "{ROWS}"\nvoid __jitload_kernel_{number}({parameters} __asm__("{symbol}");\n'


def _row(number: int, text: str, *, has_form: bool) -> str:
    expression = f"__jitload_kernel_{number}" if text.startswith(BY_SYMBOL) else text
    return f'#line {number} "{ROWS}"\n{f"{_ROW}{number}" if has_form else "JITLOAD_CPU_KERNEL"}({expression}),\n'


def _forms(expressions: Sequence[str], split: Split | None) -> dict[str, tuple[str, str]]:
    """Return by kernel the expression of its second form, and the macro that tells whether it is compiled."""
    if split is None:
        return {}
    found = {text: split_expression(text) for text in expressions}
    return {text: (form, split.forms[name]) for text, (name, form) in found.items() if name in split.forms}


def _form(number: int, form: str, macro: str) -> str:
    """Define the macro that makes the row: with the second form, where that is compiled."""
    row = f"{_ROW}{number}"
    return (
        f'#ifdef {macro}\n#line {number} "{ROWS}"\nstatic constexpr auto {row}_form = &{form};\n'
        f"#define {row}(...) JITLOAD_CPU_SPLIT({row}_form, __VA_ARGS__)\n"
        f"#else\n#define {row} JITLOAD_CPU_KERNEL\n#endif\n"
    )


def looks_again(texts: Sequence[str]) -> bool:
    """Tell whether a thread may wait, in a loop of its own that no call shows, for what another thread writes."""
    return any(_LOOKS_AGAIN.search(text) for text in texts)


def compiler_flags(flags: Sequence[str]) -> tuple[str, ...]:
    """Return the options without those that stand in the text instead, behind our header and unread by it."""
    return tuple(
        flag
        for before, flag in pairwise(("", *flags))
        if "-include" not in (before, flag) and not _DEFINED.fullmatch(flag)
    )


def preprocessor_lines(options: Sequence[str]) -> Iterator[str]:
    """Yield the lines that stand for the options `-D`, `-U` and `-include`."""
    for option in options:
        if found := _DEFINED.fullmatch(option):
            kind, name, parameters, value = found.groups()
            if kind == "U":
                yield f"#undef {name}"
            else:
                text = "1" if value is None else value.replace("\n", " ")
                yield f"#undef {name}\n#define {name}{parameters} {text}"
    yield from (f'#include "{path}"' for option, path in pairwise(options) if option == "-include")
