"""Counters of projections in the text form that Prometheus reads."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from everlog.projections.ids import ProjectionId
from everlog.projections.observers import Observer
from everlog.projections.recovery import Recovery

_HELP = {
    "handled_total": "Envelopes that a handler handled, repeated ones too.",
    "errors_total": "Failed attempts of a handler.",
    "stored_total": "Envelopes whose offset was stored.",
    "failures_total": "Streams that failed.",
    "starts_total": "Streams that were started.",
}


class Metrics(Observer):
    """An observer that counts: `observers=[metrics]`, and `metrics.text()` where Prometheus asks.

    `everlog_projection_age_seconds` is how old the envelope was that was handled last.
    """

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self._now = now
        self._counts: dict[str, Counter[tuple[str, str]]] = {name: Counter() for name in _HELP}
        self._ages: dict[tuple[str, str], float] = {}

    def _count(self, what: str, projection: ProjectionId, by: int = 1) -> None:
        self._counts[what][projection.name, projection.key] += by

    def started(self, projection: ProjectionId) -> None:
        self._count("starts_total", projection)

    def failed(self, projection: ProjectionId, cause: BaseException) -> None:
        self._count("failures_total", projection)

    def before_process(self, projection: ProjectionId, envelope: Any, created_ms: int) -> None:
        if created_ms:
            self._ages[projection.name, projection.key] = max(0.0, self._now() - created_ms / 1000)

    def after_process(self, projection: ProjectionId, envelope: Any) -> None:
        self._count("handled_total", projection)

    def offset_progress(self, projection: ProjectionId, envelope: Any, envelopes: int) -> None:
        self._count("stored_total", projection, envelopes)

    def error(self, projection: ProjectionId, envelope: Any, cause: BaseException, recovery: Recovery) -> None:
        self._count("errors_total", projection)

    def text(self) -> str:
        """All numbers, one per line."""
        return "".join(f"{line}\n" for line in self._lines())

    def _lines(self) -> Iterator[str]:
        for name, counts in self._counts.items():
            yield f"# HELP everlog_projection_{name} {_HELP[name]}"
            yield f"# TYPE everlog_projection_{name} counter"
            for place, count in sorted(counts.items()):
                yield f"everlog_projection_{name}{{{_labels(*place)}}} {count}"
        yield "# HELP everlog_projection_age_seconds How old the envelope was that was handled last."
        yield "# TYPE everlog_projection_age_seconds gauge"
        for place, age in sorted(self._ages.items()):
            yield f"everlog_projection_age_seconds{{{_labels(*place)}}} {age:.3f}"


def _labels(name: str, key: str) -> str:
    return f'name="{_escaped(name)}",key="{_escaped(key)}"'


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
