"""Objects that watch projections run: for tests and logs, and counters in the text form that Prometheus reads."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from everlog.projections.projection_id import ProjectionId
from everlog.projections.recovery import Recovery

log = logging.getLogger("everlog.projections")

_HELP = {
    "handled_total": "Envelopes that a handler handled, repeated ones too.",
    "errors_total": "Failed attempts of a handler.",
    "stored_total": "Envelopes whose offset was stored.",
    "failures_total": "Streams that failed.",
    "starts_total": "Streams that were started.",
}


class Observer:
    """Told what happens; overwrite what you need. An error in here is logged and changes nothing."""

    def started(self, projection: ProjectionId) -> None:
        """A stream begins."""

    def failed(self, projection: ProjectionId, cause: BaseException) -> None:
        """The stream failed; `stopped` follows."""

    def stopped(self, projection: ProjectionId) -> None:
        """The stream ended."""

    def before_process(self, projection: ProjectionId, envelope: Any, created_ms: int) -> None:
        """The handler is about to be called: once per attempt and envelope, also within groups."""

    def after_process(self, projection: ProjectionId, envelope: Any) -> None:
        """The handler is done with this envelope; not called if it failed or was skipped."""

    def offset_progress(self, projection: ProjectionId, envelope: Any, envelopes: int) -> None:
        """An offset was stored: the envelope that it belongs to, and how many envelopes this save covers."""

    def error(self, projection: ProjectionId, envelope: Any, cause: BaseException, recovery: Recovery) -> None:
        """An attempt failed; of a group, the first envelope is named."""


class Observers(Observer):
    """Tells many, and keeps their errors away from the projection."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        self._observers = tuple(observers)

    def __bool__(self) -> bool:
        return bool(self._observers)

    def _tell(self, what: Callable[[Observer], None]) -> None:
        for observer in self._observers:
            try:
                what(observer)
            except Exception:
                log.exception("the observer %s failed", type(observer).__name__)

    def started(self, projection: ProjectionId) -> None:
        self._tell(lambda one: one.started(projection))

    def failed(self, projection: ProjectionId, cause: BaseException) -> None:
        self._tell(lambda one: one.failed(projection, cause))

    def stopped(self, projection: ProjectionId) -> None:
        self._tell(lambda one: one.stopped(projection))

    def before_process(self, projection: ProjectionId, envelope: Any, created_ms: int) -> None:
        self._tell(lambda one: one.before_process(projection, envelope, created_ms))

    def after_process(self, projection: ProjectionId, envelope: Any) -> None:
        self._tell(lambda one: one.after_process(projection, envelope))

    def offset_progress(self, projection: ProjectionId, envelope: Any, envelopes: int) -> None:
        self._tell(lambda one: one.offset_progress(projection, envelope, envelopes))

    def error(self, projection: ProjectionId, envelope: Any, cause: BaseException, recovery: Recovery) -> None:
        self._tell(lambda one: one.error(projection, envelope, cause, recovery))


class ProjectionMetrics(Observer):
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
