"""Which variables of a kernel are the same for all threads of a block, and which can be worked out again: the analysis.

It starts with the guess that every variable is the same for all threads and takes back what the text does not prove,
until nothing changes: a variable is `uniform` if all that is ever written to it comes from uniform values, in
statements that stand between barriers by themselves. What may write is guessed generously: an address, a reference,
an argument of a function that is not known.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from jitload.cpptext.declarations import find_angle
from jitload.cpu.split_declarations import Variable
from jitload.cpu.split_scopes import Scopes, Surroundings
from jitload.cpu.split_tree import NotUnderstoodError, Statement
from jitload.cpu.split_words import (
    ALIGNMENTS,
    ASSIGNMENTS,
    ATOMICS,
    CONSTANTS,
    FUNCTIONS,
    KEYWORDS,
    LOADS,
    PLACES,
    QUALIFIERS,
    STEPS,
    TYPES,
)
from jitload.cpu.split_writes import Writes

_COMPUTING = frozenset("+ - * / % ( ) < > <= >= == != && || ! ~ & | ^ << ? : ,".split())  # noqa: SIM905


class Names:
    """What the names in a kernel's body stand for.

    Attributes:
        scopes: Its variables.
        around: What stands around it.
        uniform: Variables with one value for all threads.
        again: Variables that are worked out from a thread's index where they are needed.
    """

    def __init__(self, scopes: Scopes, statements: Sequence[Statement], around: Surroundings) -> None:
        self.scopes = scopes
        self.around = around
        self._writes = Writes(scopes, around)
        called = {token.text for at, token in enumerate(scopes.code) if scopes.text(at + 1) == "("}
        for variable in scopes.all():
            if variable.name in around.constants or (variable.name in FUNCTIONS and variable.name in called):
                raise NotUnderstoodError(f"{variable.name!r} hides another name of the source")
        self.uniform = {v for v in scopes.all() if self._may_be_uniform(v)}
        while self._take_back(statements):
            pass
        self.again: set[Variable] = set()
        self._find_again(statements)

    def writes(self, variable: Variable) -> Sequence[int]:
        """Return where something may be written to a variable."""
        return self._writes.places.get(variable, ())

    def is_escaped(self, variable: Variable) -> bool:
        """Tell whether the address of a variable may be kept somewhere."""
        return variable in self._writes.escaped

    def is_uniform_statement(self, statement: Statement) -> bool:
        """Tell whether a statement only changes uniform variables, by uniform values."""
        return self._only_assigns(statement.first, statement.last - 1)

    def is_uniform(self, first: int, last: int) -> bool:
        """Tell whether an expression has one value for all threads, and whether working it out changes nothing."""
        return self._is_pure(first, last, lambda variable: variable in self.uniform)

    def is_settled(self, expression: tuple[int, int], place: tuple[int, int]) -> bool:
        """Tell whether working out an expression changes nothing, and nothing in a place changes its value."""

        def is_known(variable: Variable) -> bool:
            odd = variable.is_shared or variable.is_reference or variable.dimensions or variable in self._writes.escaped
            is_number = variable.is_builtin or variable in self.uniform or variable in self.again
            is_kept = not any(place[0] <= at <= place[1] for at in self.writes(variable))
            return is_kept and is_number and not odd and not variable.says("volatile")

        return self._is_pure(*expression, is_known, by_thread=True)

    def is_assignment_list(self, first: int, last: int) -> bool:
        """Tell whether an expression only changes uniform variables, by uniform values."""
        return self._only_assigns(first, last)

    def may_ask_for_index(self, first: int, last: int) -> bool:
        """Tell whether a word calls something that may look at the thread's index, or makes an object."""
        known = (ATOMICS, LOADS, KEYWORDS, TYPES, QUALIFIERS, ALIGNMENTS, {"threadIdx", "assert"})
        for at in range(first, last + 1):
            token = self.scopes.code[at]
            if (
                token.kind != "word"
                or token.text.startswith("__jitload_")
                or any(token.text in some for some in known)
                or self.around.computes(token.text)
            ):
                continue
            variable = self.scopes.find(token.text, at)
            if variable is None and self._is_used_as_function(at):
                return True
            if variable is not None and variable.at != at and self._is_called(at):
                return True
        return False

    def _is_called(self, at: int) -> bool:
        """Tell whether a variable, or what has its name, is called: `f(…)`, `(*f)(…)`, `f[0](…)`, `s.f(…)`."""
        end = self.scopes.chain(at)
        while self.scopes.text(end + 1) == ")":
            end += 1
        return self.scopes.text(end + 1) == "("

    def _is_used_as_function(self, at: int) -> bool:
        following = at + 1
        if self.scopes.text(following) == "<":
            following = max(find_angle(self.scopes.code, following) + 1, following)
        is_name = following < len(self.scopes.code) and self.scopes.code[following].kind == "word"
        return is_name or self.scopes.text(following) in ("(", "::", "{")

    def may_divide(self, first: int, last: int) -> bool:
        """Tell whether an integer may be divided by zero."""
        for at in range(first, last + 1):
            text = self.scopes.text(at)
            if text not in ("%", "%=", "/", "/=") or self._is_nonzero(at + 1):
                continue
            if text[0] == "%" or not (self._is_float(at - 1) or self._is_float(at + 1)):
                return True
        return False

    def _is_nonzero(self, at: int) -> bool:
        token = self.scopes.code[at]
        if token.kind == "number":
            return token.text.strip("0uUlL.fFx") != ""
        return token.text in ("blockDim", "gridDim", "warpSize", "sizeof") or token.text in self.around.constants

    def _is_float(self, at: int) -> bool:
        """Tell whether an operand of a division is certainly no integer."""
        token = self.scopes.code[at]
        if token.kind == "number":
            return "." in token.text or (token.text[-1] in "fF" and not token.text.startswith("0x"))
        if token.text == "]":
            at = next(start for start, end in self.scopes.closing.items() if end == at) - 1
            while self.scopes.text(at) == "]":
                at = next(start for start, end in self.scopes.closing.items() if end == at) - 1
            token = self.scopes.code[at]
        if token.kind == "word" and token.text in FUNCTIONS:
            return token.text.endswith("f") and self.around.computes(token.text)
        variable = self.scopes.find(token.text, at)
        return variable is not None and any(variable.says(word) for word in ("float", "double"))

    def is_scalar_by_name(self, variable: Variable) -> bool:
        """Tell whether its type is one that a template parameter stands for."""
        return all(t.text in self.around.types or t.text in QUALIFIERS for t in variable.specifiers)

    # ---- what is uniform

    def _may_be_uniform(self, v: Variable) -> bool:
        if v.is_shared or v.name.startswith(("__jitload_give", "__jitload_got")):
            return False
        if v.says("constexpr"):
            return True
        is_plain = v.is_builtin or v.says("auto") or all(t.text in self.around.types for t in v.specifiers)
        if v.at < 0:  # a structure may be a parameter as long as nothing writes to it
            is_plain = is_plain or not self._writes.places.get(v)
        odd = v.is_reference or v.dimensions or v.says("static") or v.says("volatile") or v.says("extern")
        return is_plain and not odd and v not in self._writes.escaped

    def _take_back(self, statements: Sequence[Statement]) -> bool:
        """Drop what is not uniform after all; tell whether there was anything."""
        allowed: set[int] = set()
        before = len(self.uniform)
        self._check(statements, allowed)
        for variable in tuple(self.uniform):
            if any(at not in allowed for at in self._writes.places.get(variable, ())):
                self.uniform.discard(variable)
        return len(self.uniform) < before

    def _check(self, statements: Sequence[Statement], allowed: set[int]) -> None:
        for one in statements:
            if one.first in self.scopes.structural:
                if one.kind == "for":
                    self._check_head(one, allowed)
                self._check(one.body, allowed)
                self._check(one.other, allowed)
                continue
            self._check_declared(one.first)
            if one.kind == "plain" and self.is_uniform_statement(one):
                allowed.update(range(one.first, one.last + 1))

    def _check_head(self, one: Statement, allowed: set[int]) -> None:
        self._check_declared(one.first)
        start, _, step = one.heads
        for part in (start, step):
            if self._only_assigns(*part):
                allowed.update(range(part[0], part[1] + 1))

    def _check_declared(self, first: int) -> None:
        for variable in self.scopes.declared.get(first, ()):
            if variable.initializer and not variable.says("constexpr") and not self.is_uniform(*variable.value):
                self.uniform.discard(variable)

    def _only_assigns(self, first: int, last: int) -> bool:
        """Tell whether this is `a = …, b += …, ++c` over uniform variables and values."""
        if last < first:
            return False
        parts, start, at = [], first, first
        while at <= last:
            if self.scopes.text(at) == ",":
                parts.append((start, at - 1))
                start = at + 1
            at = self.scopes.closing.get(at, at) + 1
        return all(self._is_assignment(*part) for part in (*parts, (start, last)))

    def _is_assignment(self, first: int, last: int) -> bool:
        if last < first:
            return False
        texts = [token.text for token in self.scopes.code[first : last + 1]]
        if len(texts) == 2 and (texts[0] in STEPS) != (texts[1] in STEPS):
            at = first + (texts[0] in STEPS)
            return self.scopes.find(self.scopes.code[at].text, at) in self.uniform
        target = self.scopes.find(texts[0], first)
        is_one = len(texts) > 2 and texts[1] in ASSIGNMENTS
        return is_one and target in self.uniform and self.is_uniform(first + 2, last)

    # ---- what only computes

    def _is_pure(self, first: int, last: int, is_known: Callable[[Variable], bool], *, by_thread: bool = False) -> bool:
        at = first
        if last < first:
            return False
        while at <= last:
            token = self.scopes.code[at]
            end = self._pure_word(at, is_known, by_thread=by_thread) if token.kind == "word" else at
            if token.kind == "literal" and not token.text.startswith("'"):
                return False
            if token.kind == "punctuator" and (token.text not in _COMPUTING or self._is_unary(at)):
                return False
            if end < 0:
                return False
            at = end + 1
        return True

    def _pure_word(self, at: int, is_known: Callable[[Variable], bool], *, by_thread: bool) -> int:
        """Return the last token of a word that only computes, with its member; -1 where it may do more."""
        text, following = self.scopes.text(at), self.scopes.text(at + 1)
        end = at + 2 if following == "." else at
        if text in PLACES or (text == "threadIdx" and by_thread):
            return end
        variable = self.scopes.find(text, at)
        if variable is not None:
            is_address = bool(variable.is_shared and variable.dimensions and following != ".")
            if following == "(" or self.scopes.text(end + 1) == "(":
                return -1
            return end if is_address or is_known(variable) else -1
        if self.around.computes(text):
            return at
        is_type = text in TYPES or text in QUALIFIERS or text in self.around.types
        is_constant = text in CONSTANTS or (text in self.around.constants and following != "(")
        return at if is_type or (is_constant and following != ".") else -1

    def _is_unary(self, at: int) -> bool:
        """Tell whether `*` or `&` reads memory or takes an address here."""
        if self.scopes.code[at].text not in ("*", "&"):
            return False
        before = self.scopes.code[at - 1]
        if before.kind == "number" or (before.kind == "word" and before.text not in KEYWORDS):
            return False
        if before.kind == "word":  # `(float*)`
            return self.scopes.text(at + 1) not in (")", ">", "*")
        if self.scopes.text(at + 1) in (")", ">") or before.text == "]":
            return False
        if before.text != ")":
            return not (before.text == "*" and self.scopes.text(at + 1) in (")", ">"))
        opening = next(start for start, end in self.scopes.closing.items() if end == at - 1)
        group = [token.text for token in self.scopes.code[opening + 1 : at - 1]]
        types = (TYPES, QUALIFIERS, self.around.types, ("*", "&", "const"))
        return self.scopes.text(opening - 1) != "sizeof" and all(any(word in some for some in types) for word in group)

    def _find_again(self, statements: Sequence[Statement]) -> None:
        for one in statements:
            if one.first in self.scopes.structural:
                self._find_again((*one.body, *one.other))
                continue
            for variable in self.scopes.declared.get(one.first, ()):
                if self._is_again(variable):
                    self.again.add(variable)

    def _is_again(self, v: Variable) -> bool:
        odd = v.is_shared or v.is_reference or v.dimensions or v.says("static") or v.says("volatile")
        odd = odd or v.name.startswith("__jitload_")
        if v in self.uniform or odd or self._writes.places.get(v) or v in self._writes.escaped or not v.initializer:
            return False
        if not (v.is_builtin or v.says("auto")) or self._may_be_hidden(v):
            return False

        def is_known(used: Variable) -> bool:
            if used in self.again:
                return True
            changes = any(v.at < at <= v.end for at in self._writes.places.get(used, ()))
            return used in self.uniform and not changes

        return self._is_pure(*v.value, is_known, by_thread=True)

    def _may_be_hidden(self, v: Variable) -> bool:
        """Tell whether a name in a variable's value may stand for something else further down."""
        words = (at for at in range(v.value[0], v.value[1] + 1) if self.scopes.code[at].kind == "word")
        return any(self.scopes.find(self.scopes.code[at].text, at) is None and self._declares(at) for at in words)

    def _declares(self, at: int) -> bool:
        return any(v.name == self.scopes.code[at].text for v in self.scopes.all())
