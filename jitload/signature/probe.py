"""Asks NVRTC for the types of kernels with name expressions, and reads in the log which expressions NVRTC rejected.

For a kernel `k` two name expressions are registered with NVRTC: `k` itself, and a probe. The lowered name of the probe
contains the type of `k` twice: as it is, and with enums and pointers to enums replaced by their integers. The probe is
declared in a header that NVRTC reads before the source, so that line numbers do not change and no macro of the source
affects it. The probe is never defined, so it leaves nothing in the cubin.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from jitload.cpptext.lexer import tokenize
from jitload.cpptext.scopes import find_angle, find_closing
from jitload.errors import LaunchSpecError

# All identifiers are reserved names, because options such as `-DR=float` affect this header. The header must not cause
# an error itself: an error about a probe has to be an error about its name expression. The warning about deprecated
# types (1444) is suppressed only in this header, because the user gets it for the source. The warning about offsets in
# classes that have bases (1427) stays suppressed to the end, because the name expressions come last.
PROBE_HEADER = (
    "__jitload_probe.h",
    """\
#pragma nv_diagnostic push
#pragma nv_diag_suppress 1444
#if __cplusplus >= 201103L
template<class __jitload_t, bool = __is_enum(__jitload_t)> struct __jitload_promote {
    typedef __jitload_t __jitload_type;
};
template<class __jitload_t> struct __jitload_promote<__jitload_t, true> {
    typedef __underlying_type(__jitload_t) __jitload_type;
};
template<class __jitload_t> struct __jitload_promote<__jitload_t*, false> {
    typedef typename __jitload_promote<__jitload_t>::__jitload_type *__jitload_type;
};
template<class __jitload_t> struct __jitload_promote<__jitload_t&, false> {
    typedef typename __jitload_promote<__jitload_t>::__jitload_type &__jitload_type;
};
template<class __jitload_f> struct __jitload_promoted;
template<class __jitload_r, class... __jitload_a> struct __jitload_promoted<__jitload_r(__jitload_a...)> {
    typedef __jitload_r __jitload_type(typename __jitload_promote<__jitload_a>::__jitload_type...);
};
template<class __jitload_r, class... __jitload_a> struct __jitload_promoted<__jitload_r(*)(__jitload_a...)> {
    typedef __jitload_r __jitload_type(typename __jitload_promote<__jitload_a>::__jitload_type...);
};
template<class __jitload_f, class __jitload_g> __global__ void __jitload_probe();
#endif
#pragma nv_diagnostic pop
#pragma nv_diag_suppress 1427
""",
)

_INSTANTIATIONS = "__jitload_instantiations"  # the file name in messages about the lines of `instantiations`
_ALLOWED_TEXT = r"(?a)[\w:<>,*&()\[\]. +!|~^-]*"
_QUALIFIED_NAME = r"(?a)(?:::)?[A-Za-z_]\w*(?:::[A-Za-z_]\w*)*"
_IS_NAME_EXPRESSION = rf"(?:__nv_name_map|{_INSTANTIATIONS})\(\d+\)"


def probe_expression(kernel_expression: str) -> str:
    """Return a kernel's probe: the name expression whose mangled name contains the kernel's type.

    Example:
        >>> probe_expression("scale")
        '__jitload_probe<decltype(scale), __jitload_promoted<decltype(scale)>::__jitload_type>'
    """
    kernel_type = f"decltype({kernel_expression})"
    return f"__jitload_probe<{kernel_type}, __jitload_promoted<{kernel_type}>::__jitload_type>"


def instantiations(kernel_expressions: Iterable[str]) -> str:
    """Return lines to append to a source, so that the source itself instantiates the declarations of its templates.

    NVRTC crashes if a template's declaration has an error and a name expression is the first to instantiate the
    template. With these lines, NVRTC reports an ordinary error.

    For example, NVRTC reads `template <int N> __global__ void k(Undeclared*, int)` as a variable template of type void,
    because of the undeclared type.
    """
    templates = [expression for expression in kernel_expressions if "<" in expression]
    if not templates:
        return ""
    lines = "".join(f"typedef decltype({text}) __jitload_type_{number};\n" for number, text in enumerate(templates))
    return f'\n#line 1 "{_INSTANTIATIONS}"\n;\n#if __cplusplus >= 201103L\n{lines}#endif\n'


def kernel_expression(kernel: str) -> str:
    """Return the C++ expression for the kernel in `Launch(kernel=…)`.

    `kernel` is a name, which may have namespaces and template arguments. To choose an overload, the parameter types
    follow in parentheses.

    Raises:
        LaunchSpecError: `kernel` does not have this form.

    Example:
        >>> kernel_expression("ns::scale<float>(float*, int)")
        'static_cast<void(*)(float*, int)>(ns::scale<float>)'
    """
    text = kernel.strip(" ")
    _check_characters(text)
    name = re.match(_QUALIFIED_NAME, text)
    if name is None:
        raise _syntax_error(text, 0, "it must begin with the kernel's name")
    tokens, end = tokenize(text), name.end()
    index = next((index for index, token in enumerate(tokens) if token.start >= end), len(tokens))
    for opening, find in (("<", find_angle), ("(", find_closing)):
        if index < len(tokens) and tokens[index].text == opening:
            closing = find(tokens, index)
            if closing < 0:
                raise _syntax_error(text, tokens[index].start, f"nothing closes this {opening!r}")
            end, index = (tokens[closing].start + 1 if opening == "<" else end), closing + 1
    if index < len(tokens):
        problem = "only parameter types in parentheses may follow the kernel's name"
        raise _syntax_error(text, tokens[index].start, problem)
    target, parameters = text[:end], text[end:].strip(" ")
    return f"static_cast<void(*){parameters}>({target})" if parameters else target


def rejected_expressions(log: str) -> frozenset[str]:
    """Return the name expressions that NVRTC rejected. For each rejected kernel, the kernel's probe is included.

    A probe is the name expression that shows a kernel's type. NVRTC stops after a hundred messages. A kernel then also
    counts as rejected if its probe was rejected, and the next compilation may reject more expressions.
    """
    rejected = set(_expressions_with_errors(log))
    if "Error limit reached" in log:
        rejected |= {kernel for kernel in map(_probed_kernel, rejected) if kernel}
    return frozenset(rejected | {probe_expression(kernel) for kernel in rejected if not _probed_kernel(kernel)})


def is_only_name_errors(log: str) -> bool:
    """Return whether the log has errors, and every error is about a name expression rather than the source."""
    locations = re.findall(r"^(.*): (?:catastrophic |internal )?error\b", log, re.MULTILINE)
    return bool(locations) and all(re.fullmatch(_IS_NAME_EXPRESSION, location) for location in locations)


def _expressions_with_errors(log: str) -> Iterator[str]:
    """Yield the name expressions that NVRTC rejected. The log quotes each expression below its error."""
    is_error = False
    for line in log.splitlines():
        if re.match(r"\S.*\(\d+\): ", line):
            is_error = bool(re.match(r"__nv_name_map\(\d+\): (?:catastrophic )?error\b", line))
        elif is_error and line.startswith("  #pragma nv_mangled_name "):
            yield line.removeprefix("  #pragma nv_mangled_name ")
            is_error = False


def _probed_kernel(expression: str) -> str:
    match = re.match(r"__jitload_probe<decltype\((.*)\), __jitload_promoted<decltype\(", expression)
    return match[1] if match else ""


def _check_characters(text: str) -> None:
    """Raise LaunchSpecError for text that could be more than a kernel's name, such as text with a string or `;`."""
    if not text:
        raise _syntax_error(text, 0, "it is empty")
    allowed = re.match(_ALLOWED_TEXT, text)
    end = allowed.end() if allowed else 0
    if end < len(text):
        raise _syntax_error(text, end, f"{text[end]!r} is not allowed in a kernel's name")
    if "__jitload_" in text:
        raise _syntax_error(text, text.index("__jitload_"), "names that begin with '__jitload_' are reserved")


def _syntax_error(text: str, column: int, problem: str) -> LaunchSpecError:
    return LaunchSpecError(
        f"this is not a kernel: {problem}",
        field="kernel",
        expression=text,
        column=column,
        hint="Write a name such as 'scale', 'ns::scale<float, 4>' or, for an overload, 'scale(float*, int)'.",
    )
