"""The bytes of an object file in, what its table of CPU kernels says out: types, sizes, and which may wait."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from jitload.elf.file import RELA, SHT_RELA, STB_LOCAL, STT_FUNC, STT_OBJECT, STT_TLS, ElfFile, Symbol
from jitload.model import ParameterSlot, Variable

TABLE = "__jitload_cpu_kernels"
_MARKS = "__patchable_function_entries"
_WAITS = frozenset({"jitload_cpu_barrier", "jitload_cpu_exchange", "jitload_cpu_active", "jitload_cpu_yield"})
_OWN = frozenset({"jitload_cpu_current_worker", "jitload_cpu_thread_memory", "_TLS_MODULE_BASE_"})  # thread-local, too
_ROW = 48  # bytes of a jitload_cpu_kernel


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuKernel:
    """One row of the table: the kernel's symbol, its probe's, its parameters, and whether a thread of it may wait."""

    symbol: str
    probe: str
    slots: tuple[ParameterSlot, ...]
    can_wait: bool


class ObjectFile:
    """A relocatable ELF file of the host's compiler, in which every function has a section of its own."""

    def __init__(self, data: bytes) -> None:
        file = ElfFile(data)
        self._sections = file.sections
        self._symbols = file.symbols()

    def rows(self) -> tuple[CpuKernel, ...]:
        """Return the kernels of the table in its order."""
        table = next((symbol for symbol in self._symbols if symbol.name == TABLE), None)
        if table is None:
            return ()
        return tuple(self._row(table, at) for at in range(table.value, table.value + table.size, _ROW))

    def undefined(self, names: Sequence[str]) -> frozenset[str]:
        """Return which of the table's rows, by their names, are kernels that are declared alone."""
        defined = {symbol.name for symbol in self._symbols if symbol.section}
        return frozenset(name for name, row in zip(names, self.rows(), strict=True) if row.symbol not in defined)

    def marked(self) -> tuple[str, ...]:
        """Return the symbols of all functions that are `__global__`, in the order of the file."""
        found = []
        for index, section in enumerate(self._sections):
            if section.name == _MARKS:
                found += [self._function_at(*target) for _, target in sorted(self._relocations(index).items())]
        return tuple(dict.fromkeys(found))

    def dynamic_shared(self) -> tuple[str, ...]:
        """Return the symbols of `extern __shared__` arrays: thread-local and defined nowhere."""
        names = (s.name for s in self._symbols if s.type == STT_TLS and s.section == 0)
        return tuple(name for name in names if name not in _OWN)

    def variables(self) -> tuple[Variable, ...]:
        """Return the global variables, `__device__` and `__constant__` ones among them, under their symbols."""
        own = ("_ZTV", "_ZTI", "_ZTS", "_ZGV")
        return tuple(
            Variable(name=s.name, symbol=s.name, size=s.size)
            for s in self._symbols
            if s.type == STT_OBJECT and s.section and s.size and s.binding != STB_LOCAL
            if "__jitload_" not in s.name and not s.name.startswith(own)
        )

    def _row(self, table: Symbol, at: int) -> CpuKernel:
        targets = self._relocations(table.section)
        sizes = self._numbers(*targets[at + 32])
        offsets = self._offsets(sizes, self._numbers(*targets[at + 40]))
        return CpuKernel(
            symbol=self._function_at(*targets[at + 16]),
            probe=self._function_at(*targets[at + 24]),
            slots=tuple(ParameterSlot(offset=offset, size=size) for offset, size in zip(offsets, sizes, strict=True)),
            can_wait=self._reaches(targets[at][0], _WAITS),
        )

    @staticmethod
    def _offsets(sizes: tuple[int, ...], alignments: tuple[int, ...]) -> list[int]:
        """Return where each parameter would lie in a parameter block."""
        offsets, end = [], 0
        for size, alignment in zip(sizes, alignments, strict=True):
            end = -(-end // alignment) * alignment
            offsets.append(end)
            end += size
        return offsets

    def _numbers(self, symbol: int, addend: int) -> tuple[int, ...]:
        """Return the 32-bit numbers of a table that a zero ends."""
        found = self._symbols[symbol]
        body, at = self._sections[found.section].data, found.value + addend
        numbers = []
        while number := struct.unpack_from("<I", body, at)[0]:
            numbers.append(number)
            at += 4
        return tuple(numbers)

    def _function_at(self, symbol: int, addend: int) -> str:
        """Return the name of what a relocation points to; local functions are known by section and offset."""
        found = self._symbols[symbol]
        if found.name:
            return found.name
        near = (
            s
            for s in self._symbols
            if s.type == STT_FUNC and s.section == found.section and s.value <= addend < s.value + max(s.size, 1)
        )
        return next((s.name for s in near), "")

    @cached_property
    def _relocated(self) -> dict[int, dict[int, tuple[int, int]]]:
        """By section: offset in it to the symbol it refers to and what is added to that."""
        found: dict[int, dict[int, tuple[int, int]]] = {}
        for section in self._sections:
            if section.type == SHT_RELA:
                rows = found.setdefault(section.info, {})
                for offset, _, symbol, addend in RELA.iter_unpack(section.data):
                    rows[offset] = (symbol, addend)
        return found

    def _relocations(self, section: int) -> dict[int, tuple[int, int]]:
        return self._relocated.get(section, {})

    def _reaches(self, start: int, names: frozenset[str]) -> bool:
        """Tell whether code behind a symbol may come to call one of `names`: whatever it refers to counts."""
        seen: set[int] = set()
        waiting = [self._symbols[start].section]
        while waiting:
            section = waiting.pop()
            if section in seen:
                continue
            seen.add(section)
            for symbol, _ in self._relocations(section).values():
                target = self._symbols[symbol]
                if target.name in names:
                    return True
                if 0 < target.section < len(self._sections):
                    waiting.append(target.section)
        return False
