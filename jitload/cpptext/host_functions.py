"""Find the host functions in a source, and remove host code from texts for NVRTC.

The functions are a guess from tokens. The compiler decides what their types are.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

from jitload.candidate import Candidate
from jitload.cpptext.declarations import Declarator, find_declarator, make_candidate, write_tokens
from jitload.cpptext.lexer import Token, tokenize
from jitload.cpptext.preprocessor import Run, macros_with, split_directives
from jitload.cpptext.scopes import (
    CLASSES,
    body_start,
    declarations_in,
    find_closing,
    split_branches,
    split_declarations,
    template_end,
)

_DEVICE_WORDS = frozenset(("__global__", "__device__", "__constant__", "__shared__", "__managed__"))
_OTHER_TYPES = frozenset(("using", "typedef", "concept"))
_KEYWORDS = frozenset((
    "struct", "class", "union", "enum", "typedef", "using", "template", "typename", "public", "private", "protected",
    "final", "const", "constexpr", "static", "inline", "extern", "volatile", "alignas", "auto", "void", "bool", "char",
    "short", "int", "long", "unsigned", "signed", "float", "double", "size_t",
    "static_assert", "sizeof", "alignof", "true", "false",
))  # fmt: skip
_SPECIFIERS = frozenset(("static", "inline", "extern", '"C"'))
# Matches the names of types that only tvm-ffi converts.
_FFI_TYPE = (
    r"\b(?:tvm|ffi|TensorView|DL(?:Tensor|ManagedTensor(?:Versioned)?|DataType|Device)|TVMFFIAny|string)\b"
    r"|\bstd\b(?!::(?:complex|byte|\w+_t)\b)"
)

# Headers of libraries that only host code calls. Kernels may use the types of the headers that do not match.
_HOST_LIBRARY = (
    r'[<"](?:(?:cublas(?!Lt\.|_v2\.|\.)\w+|curand|cusolver(?!Dn\.)\w+|cudnn\w*|cutensor|nvml|nvToolsExt|mpi|omp'
    r'|helper_(?:cuda|functions|image|string|timer))\.h[">]|(?:nvtx3|opencv2|boost|cub/device)/)'
)
_NUMBER_WORDS = frozenset((
    "void", "bool", "char", "short", "int", "long", "unsigned", "signed", "float", "double", "const", "size_t",
    *(f"{sign}int{bits}_t" for sign in ("", "u") for bits in (8, 16, 32, 64)),
))  # fmt: skip
# Words besides `_NUMBER_WORDS` that may precede a host function's name. Any other word may be a macro for
# `__global__`.
_PLAIN = r"constexpr|std|string|vector|cuda[A-Z]\w*|CU[a-z]\w*|[*&<>,]|::"


class HostFunction(NamedTuple):
    """A host function in a text.

    Attributes:
        candidate: Its name with namespaces, and its parameters.
        result: The text of its result type; `auto` if the type is written after the parameters.
        is_plain: Whether no type in its declaration seems to need tvm-ffi.
        has_numbers_only: Whether it takes only numbers and `void*`, and returns a number or nothing. tvm-ffi's own
            macro can export such a function.
    """

    candidate: Candidate
    result: str
    is_plain: bool
    has_numbers_only: bool


@functools.lru_cache(maxsize=64)
def find_host_functions(text: str) -> tuple[HostFunction, ...]:
    """Return the host functions that a text declares at namespace scope, including `main`.

    Example:
        >>> find_host_functions("namespace n { void run(float* x, int n) {} }")[0].candidate.name
        'n::run'
    """
    return tuple(_host_functions(list(split_directives(tokenize(text)))))


def _host_functions(runs: Sequence[Run]) -> Iterator[HostFunction]:
    not_of_host = {*_device_words(runs), "namespace", "operator"}
    for namespaces, declaration, head in declarations_in(split_branches(runs)[0]):
        undecorated = head[template_end(head) :]
        if undecorated and not _is_type(undecorated) and not_of_host.isdisjoint(t.text for t in undecorated):
            declarator = find_declarator(declaration, template_end(head))
            if declarator and declarator.name_index > 0 and declarator.name not in _KEYWORDS:
                yield _function(declaration, declarator, namespaces)


@functools.lru_cache(maxsize=64)
def defines_host_functions(texts: tuple[str, ...], names: tuple[str, ...]) -> bool:
    """Return whether the texts define host functions with all of the names.

    A function does not count if an unknown word precedes its name, because the word may be a macro for `__global__`.

    Example:
        >>> [defines_host_functions((text,), ("f",)) for text in ("int f(int n) { return n; }", "KERNEL f() {}")]
        [True, False]
    """
    found = [f for text in texts if any(name in text for name in names) for f in find_host_functions(text)]
    plain = [f.candidate.name.rpartition("::")[2] for f in found if f.candidate.is_definition and _has_plain_result(f)]
    return bool(names) and {*names} <= {*plain}


def _has_plain_result(function: HostFunction) -> bool:
    words = {*function.result.split()}
    return bool(words) and all(re.fullmatch(_PLAIN, word) for word in words - _NUMBER_WORDS)


def has_main(texts: Iterable[str]) -> bool:
    """Return whether one of the texts defines `main`."""
    found = [f.candidate for text in texts if "main" in text for f in find_host_functions(text)]
    return any(candidate.is_definition and candidate.name == "main" for candidate in found)


def is_string(type_: str) -> bool:
    """Return whether a type is a C string. Only tvm-ffi can convert a Python `str` to a C string."""
    return "const" in type_ and type_.count("*") == 1 and re.search(r"(?<!signed )\bchar\b", type_) is not None


def _function(declaration: Sequence[Token], declarator: Declarator, namespaces: tuple[str, ...]) -> HostFunction:
    candidate = make_candidate(declaration, declarator, namespaces)
    text = write_tokens(declaration[: declarator.close + 1])
    is_plain = not re.search(_FFI_TYPE, text) and not any(map(is_string, candidate.types))
    result = [t.text for t in declaration[: declarator.name_index] if t.text not in _SPECIFIERS]
    has_numbers_only = _NUMBER_WORDS.issuperset(result) and all(
        type_ == "void*" or {*type_.split()} <= _NUMBER_WORDS for type_ in candidate.types
    )
    return HostFunction(candidate, " ".join(result), is_plain, has_numbers_only)


def _is_type(head: Sequence[Token]) -> bool:
    """Return whether a declaration declares a type or a concept. `head` are the tokens before the body."""
    words = {token.text for token in head}
    is_function = head[-1].text == ")"  # in `void f(struct Pair pair)`, `struct` declares no type
    return not words.isdisjoint(_OTHER_TYPES) or not (is_function or words.isdisjoint(CLASSES))


# ---- device code alone ---------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=16)
def without_host_code(texts: tuple[str, ...], mentioned: str = "", *, only_mentioned: bool = False) -> tuple[str, ...]:
    r"""Return texts for NVRTC, with spaces in place of code that the kernels do not need.

    Kernels, device functions and device variables are kept. Directives are kept, except `#include` lines for host code.
    Types, class templates, constants and `constexpr` functions are kept if their names appear in kept code. Assertions
    are kept if all their names do. Other host functions are always left out. Line numbers stay the same.

    `mentioned` is C++ outside the texts that counts as kept code, such as `scale<Pair>`. If `only_mentioned` is true,
    kernels and device functions are kept only if their names appear in kept code, too.

    Example:
        >>> without_host_code(("__global__ void k() {}\nint main() { k<<<1, 1>>>(); }",))
        ('__global__ void k() {}\n                            ',)
    """
    texts = tuple(text.replace("\r\n", "\n") for text in texts)
    runs = [list(split_directives(tokenize(text))) for text in texts]
    device_words = frozenset().union(*map(_device_words, runs))
    always_kept = frozenset() if only_mentioned else device_words
    parts = [_Parts(*part, device_words, always_kept) for part in zip(texts, runs, strict=True)]
    reached = {token.text for token in tokenize(mentioned)}.union(*(part.seeds for part in parts))
    pending = True
    while pending:
        pending = False
        for declaration in (declaration for part in parts for declaration in part.declarations):
            if not declaration.is_kept and not declaration.names.isdisjoint(reached):
                declaration.is_kept = pending = True
                reached |= declaration.words
    for assertion in (assertion for part in parts for assertion in part.assertions):
        assertion.is_kept = reached >= assertion.words - _KEYWORDS
    return tuple(part.kept_text(reached) for part in parts)


def _device_words(runs: Sequence[Run]) -> frozenset[str]:
    """Return words such as `__device__`, and the names of macros whose bodies contain such a word."""
    return _DEVICE_WORDS.union(macros_with(_DEVICE_WORDS, runs))


class _Declaration:
    """A declaration with the names that it declares and the words that it contains.

    `is_kept` says whether device code needs the declaration. `host_spans` are the (start, end) positions of host code
    in the member functions of a class, or in a macro.
    """

    def __init__(
        self,
        names: frozenset[str],
        tokens: Sequence[Token],
        span: tuple[int, int] = (0, 0),
        host_spans: Sequence[tuple[int, int]] = (),
    ) -> None:
        self.names = names
        self.start, self.end = span
        self.host_spans = host_spans
        kept = (t for t in tokens if t.kind == "word" and not any(start <= t.start < end for start, end in host_spans))
        self.words = frozenset(token.text for token in kept)
        self.is_kept = False


class _Parts:
    """The declarations that may be left out of a text. `seeds` are the words in all other declarations.

    Functions with one of the words `always_kept` are among the latter.
    """

    def __init__(
        self, text: str, runs: Sequence[Run], device_words: frozenset[str], always_kept: frozenset[str]
    ) -> None:
        self._text = text
        self._device_words, self._always_kept = device_words, always_kept
        self._directives = [run for directive, run in runs if directive]
        self.seeds: set[str] = set()
        self.declarations: list[_Declaration] = []
        self.assertions: list[_Declaration] = []
        # All directives stay in the text. The words in the body of a macro count as used only if the macro is used.
        for run in self._directives:
            if [token.text for token in run[1:2]] == ["define"] and len(run) > 2:
                spans = self._instantiation(run[3:])
                macro = _Declaration(frozenset((run[2].text,)), run[3:], host_spans=spans)
                macro.is_kept = bool(spans)
                self.declarations.append(macro)
        self._read(split_branches(runs)[0])

    def _instantiation(self, definition: Sequence[Token]) -> list[tuple[int, int]]:
        """Return the (start, end) of a macro's body if it begins with an explicit instantiation of a host template."""
        words = [token.text for token in definition]
        start = words.index(")") + 1 if words[:1] == ["("] and ")" in words else 0
        instantiates = words[start : start + 1] == ["template"] and words[start + 1 : start + 2] != ["<"]
        is_of_host = instantiates and self._device_words.isdisjoint(words)
        return [(definition[start].start, definition[-1].start + len(words[-1]))] if is_of_host else []

    def _read(self, code: Sequence[Token]) -> None:
        end = 0
        for _, declaration, head in declarations_in(code):
            opening = body_start(declaration)
            last = declaration[-1]
            end = last.start + len(last.text)
            if semicolon := re.compile(r"\s*;").match(self._text, end):
                end = semicolon.end()
            names = self._names(declaration, head)
            if names is None:
                self.seeds |= {token.text for token in declaration if token.kind == "word"}
            else:
                is_class = opening is not None and not CLASSES.isdisjoint(token.text for token in head)
                host_spans = list(_host_spans(declaration[opening:], self._device_words)) if is_class else []
                self.declarations.append(_Declaration(names, declaration, (declaration[0].start, end), host_spans))
                if [token.text for token in head[:1]] == ["static_assert"]:
                    self.assertions.append(self.declarations[-1])
        # What follows the last declaration are uses of macros without a semicolon.
        self.seeds |= {token.text for token in code if token.start >= end and token.kind == "word"}

    def _names(self, declaration: Sequence[Token], head: Sequence[Token]) -> frozenset[str] | None:
        """Return the names that a declaration may declare.

        A declaration is kept if one of these names appears in kept code. The result is empty for a declaration that is
        always left out, and None for a declaration that is always kept.
        """
        end_of_template = template_end(head)
        head, declaration = head[end_of_template:], declaration[end_of_template:]
        words = [token.text for token in head]
        if not self._device_words.isdisjoint(words):
            is_kept = "operator" in words or not self._always_kept.isdisjoint(words)
            start = words.index("__global__") + 1 if "__global__" in words else 0
            function = None if is_kept else find_declarator(declaration, start)
            return frozenset((function.name,)) if function and function.name_index > 0 else None
        if words[:1] == ["static_assert"] or _is_of_host(words):
            return frozenset()
        if words[:2] == ["using", "namespace"]:
            return None
        if words[:1] == ["namespace"]:
            return frozenset(words[1:2])
        is_type = bool(head) and _is_type(head)
        declarator = None if is_type else find_declarator(declaration, 0)
        if declarator and declarator.name_index > 0:
            is_constant = "constexpr" in words or "consteval" in words
            return frozenset((declarator.name,)) if is_constant else frozenset()
        is_host_variable = not is_type and {"const", "constexpr"}.isdisjoint(words)
        return frozenset() if is_host_variable else _declared_words(declaration, head)

    def kept_text(self, reached: Collection[str]) -> str:
        """Return the text with spaces in place of code and `#include` lines that device code does not need.

        `reached` are the words in kept code.
        """
        text, blank = self._text, re.sub(r"[^\n]", " ", self._text)
        kept = list(text)
        for declaration in self.declarations:
            if not declaration.is_kept:
                kept[declaration.start : declaration.end] = blank[declaration.start : declaration.end]
        unused = "|".join(name for name in ("cub", "thrust") if not _uses(name, reached))
        of_host = rf'{_HOST_LIBRARY}|[<"](?:{unused})/' if unused else _HOST_LIBRARY
        for run in self._directives:
            start, end = run[0].start, run[-1].start + len(run[-1].text)
            is_include = [token.text for token in run[1:2]] == ["include"] and run[-1].line == run[1].line
            is_kept = not (is_include and re.search(of_host, text[start:end]))
            kept[start:end] = (text if is_kept else blank)[start:end]
        for declaration in self.declarations:
            for start, end in declaration.host_spans if declaration.is_kept else ():
                kept[start:end] = blank[start:end]
        return "".join(kept)


def _uses(library: str, words: Iterable[str]) -> bool:
    return any(word == library or word.startswith(f"{library.upper()}_") for word in words)


def _is_of_host(words: Sequence[str]) -> bool:
    """Return whether the words before a declaration's body are enough to identify host code.

    `catch` is enough: after `int main() try { }`, the `catch` looks like a new declaration.
    """
    is_in_std = words[:4] == ["using", "namespace", "std", "::"]  # such as `using namespace std::chrono`
    is_operator = "operator" in words and "constexpr" not in words
    return words[:1] == ["catch"] or is_in_std or is_operator


def _declared_words(declaration: Sequence[Token], head: Sequence[Token]) -> frozenset[str]:
    """Return the words that may be the declared names in a declaration of a type or a constant."""
    words = [token.text for token in head]
    if words[:1] == ["using"] and "=" not in words:
        return frozenset(token.text for token in head[-2:] if token.kind == "word")
    if words[:1] == ["typedef"] and {"(", "{", "[", ","}.isdisjoint(token.text for token in declaration):
        return frozenset((words[-1],))
    counted = declaration if {"enum", "typedef"} & {*words} else [*head, *declaration[-1:]]
    initializer = words.index("=") if "=" in words else len(counted)
    words_in = (token.text for token in counted[:initializer] if token.kind == "word")
    return frozenset(word for word in words_in if word not in _KEYWORDS)


def _host_spans(tokens: Sequence[Token], device_words: frozenset[str]) -> Iterator[tuple[int, int]]:
    """Yield the (start, end) positions of host code in a class: bodies of member functions, and all of `__host__` ones.

    `tokens` begin with the opening brace of the class. Functions with `constexpr`, which device code may call, and
    functions with `__device__` are not host-only.
    """
    close = find_closing(tokens, 0)
    for member in filter(None, split_declarations(tokens[1:close] if close > 0 else tokens[1:])):
        opening = body_start(member)
        words = {token.text for token in member[:opening]}
        if not words.isdisjoint(device_words):
            continue
        if "__host__" in words:
            yield member[0].start, member[-1].start + len(member[-1].text)
        elif opening and words.isdisjoint(("constexpr", "consteval")):
            if "(" not in words:
                if words & CLASSES:
                    yield from _host_spans(member[opening:], device_words)
                continue
            end = find_closing(member, opening)
            if end > 0:
                yield member[opening].start + 1, member[end].start
