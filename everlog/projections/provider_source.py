"""A user's own source: an object with `source(read_offset)` and `extract_offset(envelope)`.

    class Lines:
        async def source(self, read_offset):
            done = await read_offset()              # None at first, else the offset that was stored
            for number, line in enumerate(open("lines.txt")):
                if done is None or number > done:
                    yield number, line

        def extract_offset(self, envelope):
            return envelope[0]

Optional: `extract_creation_time(envelope)` in ms, `verify_offset(offset)` (False or an error leaves the envelope
out), `extract_journal(envelope)` for `parallelism`, `extract_position(envelope)` for `wait(token)`, `lag(offset)`,
and `envelope_type`, as which dead letters are read back.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from everlog.core.values import Position
from everlog.errors import InvalidOffset, InvalidProjection
from everlog.journal.parts import JournalParts
from everlog.projections.offsets import Offset
from everlog.projections.projection_id import check_part
from everlog.projections.source import Delivery, Feed, Lag, Source

log = logging.getLogger("everlog.projections")

ReadOffset = Callable[[], Awaitable[Offset | None]]


class SourceProvider(Protocol):
    """What an own source must have."""

    def source(self, read_offset: ReadOffset) -> Any:
        """An async iterator over envelopes, or a coroutine that returns one: first what follows the stored offset."""

    def extract_offset(self, envelope: Any) -> Offset:
        """The envelope's offset."""


class ProviderSource(Source):
    """One provider, or one per key.

    >>> ProviderSource({"a": object()})
    Traceback (most recent call last):
    everlog.errors.InvalidProjection: a source provider needs source(read_offset) and extract_offset(envelope)
    """

    def __init__(self, providers: SourceProvider | Mapping[str, SourceProvider], *, key: str = "all") -> None:
        found = dict(providers) if isinstance(providers, Mapping) else {key: providers}
        if not found:
            raise InvalidProjection("a source needs at least one key")
        for name, provider in found.items():
            check_part("key", name)
            if not callable(getattr(provider, "source", None)) or not callable(
                getattr(provider, "extract_offset", None)
            ):
                raise InvalidProjection("a source provider needs source(read_offset) and extract_offset(envelope)")
        self.providers = found

    def open(self, parts: JournalParts | None) -> Feed:
        return ProviderFeed(self.providers)


class ProviderFeed(Feed):
    """Envelopes of users' providers, one at a time."""

    def __init__(self, providers: Mapping[str, Any]) -> None:
        self._providers = providers
        types = {getattr(provider, "envelope_type", Any) for provider in providers.values()}
        self._decoder = msgspec.json.Decoder(types.pop() if len(types) == 1 else Any)
        self._verifies = {
            key: provider.verify_offset for key, provider in providers.items() if hasattr(provider, "verify_offset")
        }

    async def keys(self) -> Sequence[str]:
        return sorted(self._providers)

    async def read(self, key: str, stored: Offset | None) -> AsyncIterator[Sequence[Delivery]]:
        provider = self._providers[key]

        async def read_offset() -> Offset | None:
            return stored

        found = provider.source(read_offset)
        envelopes = await found if inspect.isawaitable(found) else found
        try:
            async for envelope in envelopes:
                yield (self._deliver(key, provider, envelope),)
        finally:
            close = getattr(envelopes, "aclose", None)
            if close is not None:
                await close()

    def _deliver(self, key: str, provider: Any, envelope: Any) -> Delivery:
        created = getattr(provider, "extract_creation_time", None)
        journal = getattr(provider, "extract_journal", None)
        position = getattr(provider, "extract_position", None)
        place: Position | None = None if position is None else position(envelope)
        offset = provider.extract_offset(envelope)
        if offset is None:
            raise InvalidOffset("extract_offset returned None: every envelope has an offset")
        return Delivery(
            offset,
            envelope,
            0 if created is None else created(envelope),
            None if journal is None else journal(envelope),
            None if place is None else {(place.topic, place.partition): place.offset},
        )

    async def verify(self, key: str, delivery: Delivery) -> bool:
        verify = self._verifies.get(key)
        if verify is None:
            return True
        try:
            found = verify(delivery.offset)
            accepted = (await found if inspect.isawaitable(found) else found) is not False
            reason: object = "its offset was not accepted"
        except Exception as error:
            accepted, reason = False, error
        if not accepted:
            log.warning("the envelope at %s is left out: %s", delivery.offset, reason)
        return accepted

    async def lag(self, key: str, stored: Offset | None) -> Lag | None:
        ask = getattr(self._providers.get(key), "lag", None)
        if ask is None:
            return None
        found = ask(stored)
        events, seconds = await found if inspect.isawaitable(found) else found
        return Lag(events, seconds)

    def read_back(self, payload: bytes) -> Any:
        return self._decoder.decode(payload)


def as_source(found: Any) -> Source:
    """A source, a provider, or a provider per key."""
    return found if isinstance(found, Source) else ProviderSource(found)
