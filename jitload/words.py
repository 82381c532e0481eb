"""Error messages for front ends that have options in place of Python's arguments, such as the command line."""

from __future__ import annotations

import re
from collections.abc import Mapping

# An argument with its value, if that is a text or a list of one, or without a value.
_ARGUMENT = re.compile(r"""(?<![-\w])(?:(\w+)=(?!\{)|(extra_\w+))(?:\[?['"]([^'"]*)['"]\]?|\[…\])?""")


def in_options(error: Exception | str, options: Mapping[str, str]) -> str:
    """Return an error's message with options in place of arguments, but with a compiler's output as it is.

    `options` has the option of an argument, with the space or `=` before its value: `{"arch": "--arch "}`.
    """

    def in_option(match: re.Match[str]) -> str:
        option = options.get(match[1] or match[2])
        if option is None:
            return match[0]
        return option.rstrip(" =") if match[3] is None else option + match[3]

    output = getattr(error, "log", "").splitlines()
    lines = str(error).splitlines()
    return "\n".join(line if line in output else _ARGUMENT.sub(in_option, line) for line in lines)
