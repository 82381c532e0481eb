"""Messages that keep Python's arguments apart from the words around them, so that each front end can show its own."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any


class Argument:
    """An argument of one of Python's functions, or advice for Python, that a message of an error contains.

    A front end other than Python, such as the command line, shows its own option or advice instead: see `in_options`.

    Attributes:
        name: The argument's name, which is also the key of the front ends' tables. Advice has a key of its own.
        value: The values that the front end's option contains.
        python: The words for Python.
    """

    __slots__ = ("name", "python", "value")

    def __init__(
        self, name: str, value: str | tuple[str, ...] = (), *, python: str = "", is_name: bool = False
    ) -> None:
        self.name = name
        self.value = (value,) if isinstance(value, str) else value
        is_call = name.endswith("()")
        self.python = python or (name if is_name or is_call else f"{name}=" + (repr(value) if value != () else ""))

    def __str__(self) -> str:
        return self.python

    def in_option(self, options: Mapping[str, str]) -> str:
        """Return the option that `options` has for the argument, with the value. Without an option, return Python's."""
        option = options.get(self.name)
        if option is None:
            return self.python
        if "{" in option:
            return option.format(*self.value)
        is_flag = "=" not in option and " " not in option
        return option + self.value[0] if self.value and not is_flag else option.rstrip(" =")


class Words(str):
    """The message of an error, or a part of one, that keeps the arguments in it apart from the words around them."""

    __slots__ = ("parts",)

    parts: tuple[str | Argument, ...]

    def __new__(cls, *parts: str | Argument) -> Words:  # noqa: PYI034  typing.Self needs Python 3.11
        """Make a message of strings, other messages, and arguments, which it shows as Python does."""
        words = super().__new__(cls, "".join(map(str, parts)))
        words.parts = parts
        return words

    def in_options(self, options: Mapping[str, str]) -> str:
        """Return the message with options in place of arguments."""
        return "".join(_in_options(part, options) for part in self.parts)

    def __reduce__(self) -> tuple[Any, ...]:
        return Words, self.parts


def in_options(error: Exception, options: Mapping[str, str]) -> str:
    """Return an error's message for a front end that has options in place of arguments.

    Args:
        error: The error.
        options: The option for each `Argument`, with the space or `=` before its value, `{"arch": "--arch "}`, or with
            the places of its values, `{"source file": "jitload compile {0}"}`. One without both is a flag, which is
            shown without the value.
    """
    shown = copy.copy(error)
    shown.args = tuple(_in_options(value, options) for value in error.args)
    shown.__dict__.update({name: _in_options(value, options) for name, value in error.__dict__.items()})
    return str(shown)


def _in_options(value: Any, options: Mapping[str, str]) -> Any:
    if isinstance(value, Argument):
        return value.in_option(options)
    return value.in_options(options) if isinstance(value, Words) else value
