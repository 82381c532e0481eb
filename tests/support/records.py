"""The stub driver's log, read into records."""

from collections.abc import Mapping
from dataclasses import dataclass

LAUNCH_COOPERATIVE = 2
LAUNCH_CLUSTER = 4
LAUNCH_PDL = 6
LAUNCH_PRIORITY = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One driver call: its name without `_v2`, its result, which thread made it, and what it was given.

    Attributes:
        thread: Counts the threads that have used the driver, from 1.
        fields: Text by name, as the stub wrote it: `call["attribute"]`, `call.number("value")`.
    """

    name: str
    result: int
    thread: int
    fields: Mapping[str, str]

    def __getitem__(self, key: str) -> str:
        return self.fields[key]

    def number(self, key: str) -> int:
        """Return a field that is a number or an address."""
        return int(self.fields[key])


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchRecord:
    """One launch that the driver accepted.

    Attributes:
        call: `cuLaunchKernel` or `cuLaunchKernelEx`.
        cluster: The cluster, of the launch or compiled in; None without one.
        device: The device of the context that was current.
        params: The parameter block, gaps zeroed.
        arguments: The bytes of each parameter.
        attributes: The 64 bytes of each launch attribute's value, by its number in cuda.h.
    """

    call: str
    thread: int
    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    cluster: tuple[int, int, int] | None
    shared_bytes: int
    stream: int
    device: int
    params: bytes
    arguments: tuple[bytes, ...]
    attributes: Mapping[int, bytes]

    def attribute(self, number: int) -> int | None:
        """Return a launch attribute whose value is an int, or None where it was not given."""
        value = self.attributes.get(number)
        return None if value is None else int.from_bytes(value[:4], "little", signed=True)


def read_calls(text: str) -> list[Call]:
    """Parse a log: one call a line, `name key=value …`."""
    return [_read_call(line) for line in text.splitlines()]


def _read_call(line: str) -> Call:
    name, *pairs = line.split(" ")
    fields = dict(pair.split("=", 1) for pair in pairs)
    return Call(name=name, result=int(fields.pop("result")), thread=int(fields.pop("thread")), fields=fields)


def read_launch(call: Call) -> LaunchRecord:
    """Turn the call of a launch that was accepted into its record."""
    params = bytes.fromhex(call["params"])
    slots = [tuple(map(int, slot.split(":"))) for slot in _split(call["slots"])]
    attributes = dict(item.split(":") for item in _split(call["attributes"]))
    cluster = _extents(call["cluster"])
    return LaunchRecord(
        call=call.name,
        thread=call.thread,
        kernel=call["kernel"],
        grid=_extents(call["grid"]),
        block=_extents(call["block"]),
        cluster=cluster if any(cluster) else None,
        shared_bytes=call.number("shared_bytes"),
        stream=call.number("stream"),
        device=call.number("device"),
        params=params,
        arguments=tuple(params[offset : offset + size] for offset, size in slots),
        attributes={int(number): bytes.fromhex(value) for number, value in attributes.items()},
    )


def _split(text: str) -> list[str]:
    return text.split(",") if text else []


def _extents(text: str) -> tuple[int, int, int]:
    x, y, z = map(int, text.split(","))
    return x, y, z
