"""One checker for all fault runs: what was done, as a history, against what is there afterwards.

A history is a list of operations, one JSON object a line:
{"op": "append", "key": …, "value": …, "outcome": "ok" | "fail" | "unknown", "token": …, "seq_nr": …}
{"op": "read", "key": …, "values": […], "must_hold": […]}

`must_hold` is what was acknowledged when the read began; without it, all that stands before the read in the history.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Findings:
    """What is wrong; empty lists mean that all is well."""

    lost: list[str] = field(default_factory=list)
    duplicated: list[str] = field(default_factory=list)
    reordered: list[str] = field(default_factory=list)
    phantom: list[str] = field(default_factory=list)
    stale: list[str] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.lost or self.duplicated or self.reordered or self.phantom or self.stale)


def load(path: Path) -> list[dict[str, Any]]:
    """The operations of a file; a last line that was cut off by a kill does not count."""
    operations = []
    for line in path.read_text().splitlines():
        try:
            operations.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return operations


def check(history: Iterable[dict[str, Any]], final: dict[str, Sequence[Any]]) -> Findings:
    """Compare a history with the values that each key holds at the end, in order."""
    findings = Findings()
    operations = list(history)
    appends = [operation for operation in operations if operation["op"] == "append"]
    acknowledged: dict[str, list[tuple[int, Any]]] = {}
    possible = {(operation["key"], operation["value"]) for operation in appends if operation["outcome"] != "fail"}
    for operation in appends:
        if operation["outcome"] == "ok":
            acknowledged.setdefault(operation["key"], []).append((operation["seq_nr"], operation["value"]))
    for key, values in final.items():
        counts = Counter(values)
        findings.duplicated += [f"{key}: {value}" for value, count in counts.items() if count > 1]
        findings.phantom += [f"{key}: {value}" for value in counts if (key, value) not in possible]
    for key, expected in acknowledged.items():
        there = list(final.get(key, ()))
        missing = [value for _, value in expected if value not in there]
        findings.lost += [f"{key}: {value}" for value in missing]
        order = [there.index(value) for _, value in sorted(expected) if value in there]
        if order != sorted(order):
            findings.reordered.append(key)
    findings.stale += _stale_reads(operations)
    return findings


def _stale_reads(operations: Sequence[dict[str, Any]]) -> list[str]:
    """A read must hold every append that was acknowledged before it began."""
    stale = []
    acknowledged: dict[str, set[Any]] = {}
    for operation in operations:
        key = operation["key"]
        if operation["op"] == "append" and operation["outcome"] == "ok":
            acknowledged.setdefault(key, set()).add(operation["value"])
        elif operation["op"] == "read":
            missing = set(operation.get("must_hold", acknowledged.get(key, ()))) - set(operation["values"])
            if missing:
                stale.append(f"{key}: {sorted(missing)}")
    return stale
