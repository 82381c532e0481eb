"""The questions put to the compiler about a kernel's types, and what its log says of those it refuses.

For a kernel `k` two name expressions are registered with NVRTC: `k` itself, and a probe whose lowered name holds the
type of `k` twice, as it is and with enums, also behind pointers, replaced by their integers. The probe is declared in a
header that NVRTC reads before the source, so that line numbers stay and no macro of the source reaches it; being
declared only, it leaves nothing in the cubin.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from jitload.errors import LaunchSpecError

# Every word of it is reserved, because `-DR=float` reaches it; every error of a probe belongs to the expression and
# not to this header, or the two could not be told apart; a deprecated type is reported where the user wrote it alone.
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
""",
)

_MAX_LENGTH = 32_768
_ALLOWED = re.compile(r"[\w:<>,*&()\[\]. +!|~^-]*", re.ASCII)
_CHARACTER = re.compile(
    r"(?<!\w)(?:u8|[uUL])?'(?:[ -&(-\[\]-~]|\\(?:[abfnrtv'\"?\\]|[0-7]{1,3}|x[0-9a-fA-F]{1,2}))'", re.ASCII
)
_QUALIFIED_NAME = re.compile(r"(?:::)?[A-Za-z_]\w*(?:::[A-Za-z_]\w*)*", re.ASCII)
_OPENING = {")": "(", "]": "[", ">": "<"}


def probe_expression(kernel_expression: str) -> str:
    """Return the name expression whose lowered name tells the kernel's type.

    Example:
        >>> probe_expression("scale")
        '__jitload_probe<decltype(scale), __jitload_promoted<decltype(scale)>::__jitload_type>'
    """
    of_kernel = f"decltype({kernel_expression})"
    return f"__jitload_probe<{of_kernel}, __jitload_promoted<{of_kernel}>::__jitload_type>"


def kernel_expression(kernel: str) -> str:
    """Turn the spelling of `Launch(kernel=…)` into a C++ expression.

    Args:
        kernel: A name with namespaces and template arguments, and for an overload its parameter types.

    Raises:
        LaunchSpecError: The text is anything else.

    Example:
        >>> kernel_expression("ns::scale<float>(float*, int)")
        'static_cast<void(*)(float*, int)>(ns::scale<float>)'
    """
    text = kernel.strip(" ")
    _check_characters(text)
    closing = _match_brackets(text)
    name = _QUALIFIED_NAME.match(text)
    if name is None:
        raise _refusal(text, 0, "it must begin with the kernel's name")
    end = name.end()
    if text[end:].lstrip(" ").startswith("<"):
        end = closing[text.index("<", end)] + 1
    target, parameters = text[:end], text[end:].strip(" ")
    if not parameters:
        return target
    opening = text.index(parameters, end)
    if not parameters.startswith("(") or closing[opening] != len(text) - 1:
        raise _refusal(text, opening, "only parameter types in parentheses may follow the kernel's name")
    return f"static_cast<void(*){parameters}>({target})"


def rejected_expressions(log: str) -> frozenset[str]:
    """Return the name expressions that NVRTC refused, with the probes of the kernels among them.

    NVRTC stops after a hundred messages. Then the kernels of refused probes count as refused too, and the next
    compile may refuse some more.
    """
    refused = set(_listed(log))
    if "Error limit reached" in log:
        refused |= {kernel for kernel in map(_probed_kernel, refused) if kernel}
    return frozenset(refused | {probe_expression(kernel) for kernel in refused if not _probed_kernel(kernel)})


def is_only_name_errors(log: str) -> bool:
    """Tell whether the log has errors, and all of them are about name expressions, none about the source."""
    places = re.findall(r"^(.*): (?:catastrophic |internal )?error\b", log, re.MULTILINE)
    return bool(places) and all(re.fullmatch(r"__nv_name_map\(\d+\)", place) for place in places)


def _listed(log: str) -> Iterator[str]:
    """Yield the expression under each error that is about a name expression."""
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


def _without_characters(text: str) -> str:
    """Write digits for character literals: what stands between their quotes ends nothing."""
    return _CHARACTER.sub(lambda found: "0" * len(found[0]), text)


def _check_characters(text: str) -> None:
    """Keep out whatever could end the expression or begin something else: strings, braces, `;`, `#`, comments."""
    if not text:
        raise _refusal(text, 0, "it is empty")
    if len(text) > _MAX_LENGTH:
        raise _refusal(text[:60] + "…", 0, f"it is longer than {_MAX_LENGTH} characters")
    allowed = _ALLOWED.match(_without_characters(text))
    end = allowed.end() if allowed else 0
    if end < len(text):
        raise _refusal(text, end, f"{text[end]!r} has no place in a kernel's name")
    if "__jitload_" in text:
        raise _refusal(text, text.index("__jitload_"), "names that begin with '__jitload_' are ours")


def _match_brackets(text: str) -> dict[int, int]:
    """Return where each bracket closes; within parentheses `<` and `>` may compare, so there they are no brackets."""
    pairs: dict[int, int] = {}
    waiting: list[int] = []
    for at, character in enumerate(_without_characters(text)):
        is_angle_bracket = character in "<>" and not (waiting and text[waiting[-1]] in "([")
        if character in "([" or (character == "<" and is_angle_bracket):
            waiting.append(at)
        elif character in ")]" or (character == ">" and is_angle_bracket):
            if not waiting or text[waiting[-1]] != _OPENING[character]:
                raise _refusal(text, at, f"nothing opens this {character!r}")
            pairs[waiting.pop()] = at
    if waiting:
        raise _refusal(text, waiting[-1], f"nothing closes this {text[waiting[-1]]!r}")
    return pairs


def _refusal(text: str, column: int, problem: str) -> LaunchSpecError:
    return LaunchSpecError(
        f"this is no kernel: {problem}",
        field="kernel",
        expression=text,
        column=column,
        hint="Write a name such as 'scale', 'ns::scale<float, 4>' or, for an overload, 'scale(float*, int)'.",
    )
