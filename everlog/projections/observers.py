"""Those who watch projections run: for tests, logs and metrics."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from everlog.projections.ids import ProjectionId
from everlog.projections.recovery import Recovery

log = logging.getLogger("everlog.projections")


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
