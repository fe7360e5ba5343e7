"""Events as instances of classes: two versions of a program read the same journal.

python examples/typed_events.py [folder]
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from dataclasses import dataclass
from datetime import date
from typing import Any

import msgspec

import everlog
from everlog import EventRecord


@everlog.event("reading")
@dataclass
class OldReading:
    """What the first version of the program wrote: degrees Fahrenheit."""

    fahrenheit: float


@everlog.event("reading", version=2)
@dataclass
class Reading:
    """What it writes now."""

    celsius: float
    sensor: str


@everlog.event("repaired")
class Repaired(msgspec.Struct):
    """Dataclasses, msgspec Structs and pydantic models go together."""

    on: date


@everlog.upcast(Reading, 1)
def to_celsius(old: dict[str, Any]) -> dict[str, Any]:
    """From version 1 to version 2, on every read."""
    return {"celsius": round((old["fahrenheit"] - 32) / 1.8, 1), "sensor": "unknown"}


def describe(event: EventRecord) -> str:
    """What the program does with an event, whatever its age."""
    match event.payload:
        case Reading(celsius, sensor):
            return f"{celsius} °C from {sensor}"
        case Repaired(on=day):
            return f"repaired on {day:%d %B}"
        case other:
            return f"unknown, so plain JSON: {event.type} {other}"


async def main(folder: str) -> None:
    async with everlog.connect(folder) as log:
        await log.journal("sensors", OldReading).append("roof", OldReading(68.0))  # years ago
        sensors = log.journal("sensors", Reading | Repaired)
        await sensors.append("roof", [Repaired(date(2030, 1, 31)), Reading(21.5, "north")])
        async for event in sensors.read("roof"):
            print(f"{event.type}/{event.type_version}: {describe(event)}")
        try:
            await sensors.append("roof", OldReading(70.0))
        except everlog.InvalidEventType as error:
            print(f"refused: {error}")
        async for event in log.journal("sensors", Repaired).read("roof", limit=1):  # a program that knows less
            print(describe(event))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else temporary))
