"""The fixture of most tests: offsets 1 to 6 with texts, joined by a handler; what happens is written down."""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple

from everlog.projections.lifecycle import Restart
from everlog.projections.observers import Observer
from everlog.projections.port import OffsetStore
from everlog.projections.projection import Projection
from everlog.projections.projection_id import ProjectionId
from everlog.projections.runner import Runner
from everlog.testing.projection_kit import ListProvider, MemoryOffsets

TEXTS = ["abc", "def", "ghi", "jkl", "mno", "pqr"]
KEY = "all"
ID = ProjectionId("words", KEY)
QUICK = Restart(min_s=0.0, max_s=0.0, random_factor=0.0)
NEVER = Restart(max_restarts=0)


class Envelope(NamedTuple):
    offset: int
    text: str


ENVELOPES = [Envelope(number, text) for number, text in enumerate(TEXTS, 1)]


class Six(ListProvider):
    """The six envelopes, after the stored offset; ends by default."""

    envelope_type = Envelope

    def __init__(self, envelopes=ENVELOPES, *, completes=True, **settings):
        super().__init__(
            envelopes,
            lambda one: one.offset,
            completes=completes,
            start_from=lambda stored, one: one.offset <= stored,
            **settings,
        )


class Joined:
    """A handler that joins texts, and fails at an offset so many times."""

    def __init__(self, *, fail_at: int | None = None, times: int = 1) -> None:
        self.texts: list[str] = []
        self.calls = 0
        self._fail_at = fail_at
        self._times = times

    @property
    def result(self) -> str:
        return "|".join(self.texts)

    async def __call__(self, envelope: Envelope) -> None:
        self.calls += 1
        if envelope.offset == self._fail_at and self._times > 0:
            self._times -= 1
            raise ValueError(f"cannot take {envelope.text}")
        self.texts.append(envelope.text)

    async def group(self, envelopes: list[Envelope]) -> None:
        self.calls += 1
        if any(one.offset == self._fail_at for one in envelopes) and self._times > 0:
            self._times -= 1
            raise ValueError("cannot take this group")
        self.texts.append("+".join(one.text for one in envelopes))


class Diary(Observer):
    """Writes down what an observer hears."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.stored: list[tuple[Any, int]] = []

    def count(self, what: str) -> int:
        return sum(one.startswith(what) for one in self.heard)

    def started(self, projection):
        self.heard.append("started")

    def failed(self, projection, cause):
        self.heard.append("failed")

    def stopped(self, projection):
        self.heard.append("stopped")

    def before_process(self, projection, envelope, created_ms):
        self.heard.append(f"before {envelope.offset}")

    def after_process(self, projection, envelope):
        self.heard.append(f"after {envelope.offset}")

    def offset_progress(self, projection, envelope, envelopes):
        self.stored.append((envelope.offset, envelopes))

    def error(self, projection, envelope, cause, recovery):
        self.heard.append(f"error {envelope.offset}")


def declare(handler, source=None, **settings) -> Projection:
    return Projection("words", source=Six() if source is None else source, handler=handler, **settings)


async def run_to_end(projection: Projection, store: OffsetStore, *, seconds: float = 3600.0, **settings: Any) -> Runner:
    """Run until every instance has ended."""
    async with Runner([projection], store=store, chance=lambda: 0.0, **settings) as runner:
        async with asyncio.timeout(seconds):
            await runner.ended()
    return runner


def memory() -> MemoryOffsets:
    return MemoryOffsets()
