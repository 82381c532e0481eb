"""Reads the object file of kernels compiled for the CPU: their symbols, their types, and how their threads run."""

from __future__ import annotations

import platform
import struct
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property

from jitload.elf.file import (
    RELA,
    SHT_PROGBITS,
    SHT_RELA,
    STB_LOCAL,
    STT_FUNC,
    STT_OBJECT,
    STT_TLS,
    ElfFile,
    Section,
    Symbol,
    replace_symbols,
    write_elf,
)
from jitload.model import Parameter, Variable
from jitload.signature.kernels import packed_parameters

TABLE = "__jitload_cpu_kernels"
_KERNEL_MARKS = "__patchable_function_entries"  # the section in which the compiler lists `__global__` functions
_WAITS = frozenset(f"jitload_cpu_{name}" for name in ("barrier", "exchange", "active", "yield"))
_DIVISIONS = frozenset({"__ubsan_handle_divrem_overflow_abort"})  # called if a divisor is zero
_OWN_THREAD_LOCAL = frozenset(
    {"_TLS_MODULE_BASE_"}
    | {f"jitload_cpu_{name}" for name in ("current_worker", "thread_memory")}
    | {f"jitload_cpu_{name}" for name in ("thread_index", "block_index", "block_dim", "grid_dim")}
)
_GUARD = "_ZGV"  # begins the symbol of the compiler's guard of a variable with a constructor
_OWN_STATIC_THREAD_LOCAL = ("_ZL9threadIdx", "_ZL8blockIdx", "_ZL8blockDim", "_ZL7gridDim", _GUARD)
_NOP_BYTES = 1 if platform.machine() == "x86_64" else 4
_MAX_THREADS = 1024
_ROW_SIZE = 48  # the size of a `jitload_cpu_kernel` in bytes
_OWN_PREFIX = "__jitload_"
_USER_PREFIX = "__jitload_user_"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRow:
    """One row of the kernel table, an array in an object file with one row for each kernel.

    Attributes:
        symbol: The kernel's symbol.
        probe: The symbol of a function that is never called. This symbol contains the kernel's type.
        parameters: The kernel's parameters, of which only the offsets and sizes are known.
        mode: How the kernel's threads run: the name of an enumerator in jitload/cpu.h.
        max_threads: The maximum number of threads per block: `__launch_bounds__`, or else 1024.
        shared_bytes: The size of the `__shared__` variables in bytes, not counting `extern __shared__` arrays.
    """

    symbol: str
    probe: str
    parameters: tuple[Parameter, ...]
    mode: str
    max_threads: int
    shared_bytes: int


class ObjectFile:
    """An object file of g++ in which every function has a section of its own."""

    def __init__(self, data: bytes) -> None:
        self._file = file = ElfFile(data)
        self._sections = file.sections
        self._symbols = file.symbols()

    def rows(self) -> tuple[TableRow, ...]:
        """Return the rows of the kernel table, in order."""
        table = next((symbol for symbol in self._symbols if symbol.name == TABLE), None)
        if table is None:
            return ()
        end = table.value + table.size
        return tuple(self._row(table, offset) for offset in range(table.value, end, _ROW_SIZE))

    def undefined(self, names: Sequence[str]) -> frozenset[str]:
        """Return the names of kernels that are declared but not defined. `names` has one name for each table row."""
        defined = {symbol.name for symbol in self._symbols if symbol.section}
        return frozenset(name for name, row in zip(names, self.rows(), strict=True) if row.symbol not in defined)

    def marked(self) -> tuple[str, ...]:
        """Return the symbols of all `__global__` functions, in the order of the file."""
        return tuple(self._launch_bounds)

    def layouts(self) -> tuple[str, ...]:
        """Return the symbols whose names encode the offsets, sizes and types of structures' members."""
        return tuple(symbol.name for symbol in self._symbols if "__jitload_members" in symbol.name)

    def dynamic_shared(self) -> tuple[str, ...]:
        """Return the names that `linked_name` gives to `extern __shared__` arrays.

        The symbols of these arrays are thread-local and undefined.
        """
        return tuple(linked_name(s.name) for s in self._symbols if _is_dynamic_shared(s))

    def variables(self) -> tuple[Variable, ...]:
        """Return the global variables, including `__device__` and `__constant__` variables.

        The name of each variable is its symbol.
        """
        compiler_made = ("_ZTV", "_ZTI", "_ZTS", _GUARD)
        return tuple(
            Variable(name=s.name, symbol=s.name, size=s.size)
            for s in self._symbols
            if s.type == STT_OBJECT and s.section and s.size and s.binding != STB_LOCAL
            if "__jitload_" not in s.name and not s.name.startswith(compiler_made)
        )

    def for_link(self, suffix: str = "") -> bytes:
        """Return the object file with the source's own symbols renamed by `linked_name`.

        A suffix is added to the names of what the file defines, so that it can be linked with other compilations of the
        same source.
        """
        symbols = [
            symbol._replace(name=linked_name(symbol.name) + suffix)
            if symbol.section and symbol.binding != STB_LOCAL
            else symbol._replace(name=linked_name(symbol.name))
            if _is_dynamic_shared(symbol)
            else symbol
            for symbol in self._symbols
        ]
        return write_elf(self._file.header, replace_symbols(self._sections_without_constructors(), symbols))

    def _sections_without_constructors(self) -> list[Section]:
        """Return the sections in which the guards say that the constructors of `__shared__` variables have been called.

        CUDA allows only constructors that do nothing. Otherwise, a check of races would see how threads use a guard.
        """
        sections = list(self._sections)
        for symbol in self._symbols:
            if symbol.type == STT_TLS and symbol.section and symbol.name.startswith(_GUARD):
                section = sections[symbol.section]
                data = bytearray(section.data or section.size)
                data[symbol.value] = 1
                sections[symbol.section] = section._replace(name=".tdata", type=SHT_PROGBITS, data=bytes(data))
        return sections

    def _row(self, table: Symbol, offset: int) -> TableRow:
        run_threads, function, probe, sizes, alignments = (
            self._relocations[table.section][offset + field] for field in (8, 16, 24, 32, 40)
        )
        symbol = self._function_at(*function).name
        referenced = self._referenced_by(run_threads[0])
        thread_local = (target for target in referenced if target.type == STT_TLS and target.section)
        shared = (target for target in thread_local if not target.name.startswith(_OWN_STATIC_THREAD_LOCAL))
        return TableRow(
            symbol=symbol,
            probe=self._function_at(*probe).name,
            parameters=packed_parameters(self._numbers(*sizes), self._numbers(*alignments)),
            mode=_mode({target.name for target in referenced}),
            max_threads=self._launch_bounds.get(symbol, _MAX_THREADS),
            shared_bytes=sum(target.size for target in shared),
        )

    @cached_property
    def _launch_bounds(self) -> dict[str, int]:
        """A dict from the symbol of each `__global__` function to its maximum number of threads per block.

        `__launch_bounds__(n)` makes g++ put n nops before a function. The section `_KERNEL_MARKS` has the address of
        each function's first nop.
        """
        bounds = {}
        for index, section in enumerate(self._sections):
            if section.name == _KERNEL_MARKS:
                for _, (symbol, addend) in sorted(self._relocations[index].items()):
                    function = self._function_at(symbol, addend)
                    distance = max(0, function.value - self._symbols[symbol].value - addend)
                    bounds[function.name] = distance // _NOP_BYTES or _MAX_THREADS
        return bounds

    @cached_property
    def _functions_by_section(self) -> dict[int, list[Symbol]]:
        functions: dict[int, list[Symbol]] = defaultdict(list)
        for symbol in sorted((s for s in self._symbols if s.type == STT_FUNC), key=lambda s: s.value):
            functions[symbol.section].append(symbol)
        return functions

    def _numbers(self, symbol: int, addend: int) -> tuple[int, ...]:
        """Return the 32-bit numbers of an array that ends with a zero."""
        array = self._symbols[symbol]
        body, offset = self._sections[array.section].data, array.value + addend
        numbers = []
        while number := struct.unpack_from("<I", body, offset)[0]:
            numbers.append(number)
            offset += 4
        return tuple(numbers)

    def _function_at(self, symbol: int, addend: int) -> Symbol:
        """Return the function that a relocation refers to by its symbol, or by its section and a position."""
        target = self._symbols[symbol]
        if target.name:
            return target
        functions = self._functions_by_section[target.section]
        return next(s for s in functions if target.value + addend < s.value + max(s.size, 1))

    @cached_property
    def _relocations(self) -> dict[int, dict[int, tuple[int, int]]]:
        """The relocations of each section: a mapping from their offsets to (symbol index, addend) pairs."""
        by_section: dict[int, dict[int, tuple[int, int]]] = defaultdict(dict)
        for section in self._sections:
            if section.type == SHT_RELA:
                for offset, _, symbol, addend in RELA.iter_unpack(section.data):
                    by_section[section.info][offset] = (symbol, addend)
        return by_section

    def _referenced_by(self, start: int) -> set[Symbol]:
        """Return the symbols that the section of symbol number `start` refers to, directly or indirectly."""
        referenced: set[Symbol] = set()
        visited: set[int] = set()
        pending = [self._symbols[start].section]
        while pending:
            section = pending.pop()
            if section in visited:
                continue
            visited.add(section)
            targets = [self._symbols[symbol] for symbol, _ in self._relocations[section].values()]
            referenced.update(targets)
            pending += [target.section for target in targets if 0 < target.section < len(self._sections)]
        return referenced


def _mode(names: Collection[str]) -> str:
    """Return how the threads of a kernel run. `names` are the symbols that the kernel's code refers to."""
    if not _WAITS.isdisjoint(names):
        return "JITLOAD_CPU_FIBERS"
    return "JITLOAD_CPU_LOOP" if _DIVISIONS.isdisjoint(names) else "JITLOAD_CPU_SINGLY"


def linked_name(symbol: str) -> str:
    """Return the name under which a symbol of the source is linked.

    Names that are not mangled get a prefix. Without it, a kernel `getenv` would replace libc's function in the whole
    library, and a kernel `jitload_run` would redefine jitload's own function.
    """
    return symbol if symbol.startswith(("_Z", _OWN_PREFIX)) or not symbol.isidentifier() else _USER_PREFIX + symbol


def _is_dynamic_shared(symbol: Symbol) -> bool:
    return symbol.type == STT_TLS and symbol.section == 0 and symbol.name not in _OWN_THREAD_LOCAL
