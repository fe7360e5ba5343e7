"""What keeps the state of projections: offsets, owners, what is wanted of them, dead letters.

The rules, which the conformance suite checks:

* An offset moves only under the epoch of its owner, or by a command, which counts the epoch up. So a stale owner,
  however late it wakes, changes nothing: it gets OwnershipLost.
* `projection_offset` is the authority. `offset_store`, in the form of Akka and Pekko Projection, is its mirror. On
  Cassandra, a row there counts if ours has none for its key, or an older one: so projections are taken over, back and
  forth.
* What is wanted (paused, skip) is a row that the owner follows, so that commands work while no instance runs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, NamedTuple

import msgspec
from msgspec.structs import replace

from everlog.errors import InvalidInput, InvalidProjection
from everlog.projections.copies import Copies, Difference, copy_name
from everlog.projections.offsets import JournalNumber, Offset
from everlog.projections.projection_id import ProjectionId
from everlog.projections.save_window import LogPlace, OffsetProgress
from everlog.runtime.failpoints import failpoint
from everlog.runtime.lease import Lease


class ViewChanged(Exception):
    """Others wrote where a handler had read: nothing of that was stored, and it is handled again at once."""


class AnyOffset:
    """Stands for "whatever the offset is now" in a compare-and-set."""


ANY_OFFSET: Final = AnyOffset()
MAX_SKIPS = 1000


class Desired(msgspec.Struct, frozen=True):
    """What is wanted of an instance. `skips`: the offsets of envelopes that are not to be handled.

    A skip is wanted until an offset behind its envelope is stored: so it also holds if the stream starts again before.
    """

    paused: bool = False
    skips: tuple[str, ...] = ()
    version: int = 0

    def with_skip(self, offset: str) -> Desired:
        """With this envelope to be left out, too."""
        if offset in self.skips:
            return self
        if len(self.skips) >= MAX_SKIPS:
            raise InvalidInput(f"{MAX_SKIPS} envelopes are to be skipped already: run the projection first")
        return replace(self, skips=(*self.skips, offset))

    def without_skips(self, offsets: Collection[str]) -> Desired:
        """Without these: their envelopes are left out, or not to be left out any more."""
        return replace(self, skips=tuple(one for one in self.skips if one not in offsets))


def encode_skips(skips: Sequence[str]) -> str | None:
    """As they are stored, in one column of text.

    >>> decode_skips(encode_skips(["orders-0=3"])), encode_skips([])
    (('orders-0=3',), None)
    """
    return msgspec.json.encode(skips).decode() if skips else None


def decode_skips(text: str | None) -> tuple[str, ...]:
    """As they were stored; one alone used to be plain text."""
    if text is None:
        return ()
    return msgspec.json.decode(text, type=tuple[str, ...]) if text.startswith("[") else (text,)


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What an owner says about itself, for readers outside.

    `seen` is the version of Desired that it follows, `keys` how many keys its source has, `strategy` the name of the
    projection's. `batch`: on Spark, from where to where the batch goes that is being stored.
    """

    state: str = "new"
    seen: int = 0
    handled: int = 0
    skipped: int = 0
    restarts: int = 0
    error: str | None = None
    failing: str | None = None
    attempts: int = 0
    source: Mapping[str, Any] = {}
    strategy: str = ""
    tracks_all: bool = False
    keys: int = 1
    batch: str | None = None
    updated_ms: int = 0


class KnownProjection(msgspec.Struct, frozen=True):
    """A projection instance as the store knows it."""

    name: str
    key: str
    lease: Lease | None
    report: Report
    offset: Offset | None
    updated_ms: int | None
    desired: Desired
    dead_letters: int


class ProjectionDeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """An envelope that was given up. `payload` is None if it could not be written down: then it cannot be replayed."""

    name: str
    key: str
    offset: str
    manifest: str
    cause: str
    attempts: int
    payload: bytes | None
    created_ms: int
    requested: bool = False


class View(ABC):
    """The tables that a handler fills, in the store's own database."""

    @abstractmethod
    async def execute(self, statement: str, *values: Any) -> int:
        """Run a statement; how many rows it changed, -1 if the store does not count."""

    @abstractmethod
    async def fetch(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """The rows of a query."""


class ViewTransaction(ABC):
    """View rows and the offset, stored together or not at all."""

    view: View

    @property
    def full(self) -> bool:
        """Whether no further envelope may share this transaction."""
        return False

    @abstractmethod
    def savepoint(self, offset: Offset | None = None, numbered: JournalNumber | None = None) -> None:
        """What follows is the envelope's at this offset, and can be undone by `undo`, until `keep`.

        `numbered`: what it is, if offsets do not tell which envelopes came before it.
        """

    @abstractmethod
    def keep(self) -> None:
        """What followed the last savepoint is good."""

    @abstractmethod
    def undo(self) -> None:
        """Back to the last savepoint."""

    @abstractmethod
    def save(self, progress: OffsetProgress) -> None:
        """Store the offset with what the view got."""

    @abstractmethod
    def bury(self, letters: Sequence[ProjectionDeadLetter]) -> None:
        """Store dead letters with it."""

    @abstractmethod
    def forget(self, letter: ProjectionDeadLetter) -> None:
        """The dead letter was handled."""


class Recount(NamedTuple):
    """Empty tables for a second count of a view.

    They are tables of `store`, those of copy `number`. The count begins anew and ends at `ends`, by key; then `compare`
    says how each table of the view differs from it.
    """

    store: OffsetStore
    number: int
    ends: Mapping[str, Offset | None]
    compare: Callable[[], Awaitable[list[Difference]]]


class OffsetStore(ABC):
    """The interface. Implemented by `everlog.projections.sqlite` and `everlog.projections.cassandra`."""

    # Whether `view` and `transaction` are there.
    has_views = False
    # Whether a transaction is stored as a whole, however many partitions of tables it touches.
    stores_whole = True
    # Whether a projection must pause while its view is counted again.
    recount_pauses = False
    # How long to wait at least between looks for changes, because a look costs.
    look_s = 0.0
    # How far the clocks of owners may differ: 0 where all are on one machine.
    max_skew_s = 0.0

    # Owners

    @abstractmethod
    async def leases(self, name: str) -> dict[str, Lease]:
        """The leases of a projection by key, free ones too."""

    @abstractmethod
    async def take(self, projection: ProjectionId, owner: str, seen: Lease | None) -> Lease | None:
        """Become the owner under a new epoch, unless the lease is no longer as it was seen; then None.

        Epochs of one name grow over all its keys, so that parts of a source may move from key to key.
        """

    @abstractmethod
    async def renew(self, lease: Lease, report: Report) -> Lease | None:
        """Count the beat up and leave a report. The lease as it is now, None if it is lost.

        Its epoch may have grown by a command: then this owner starts its stream again, under the new one.
        """

    @abstractmethod
    async def release(self, lease: Lease, report: Report) -> None:
        """Free the key, if it is still this owner's."""

    @abstractmethod
    async def join(self, name: str, owner: str) -> dict[str, int]:
        """Say that an instance lives; the beats of all that do or did."""

    @abstractmethod
    async def leave(self, name: str, owner: str) -> None:
        """The instance ends."""

    # Offsets

    @abstractmethod
    async def load(self, projection: ProjectionId) -> Offset | None:
        """The stored offset. If all rows of the name are entries of maps: the map of all of them."""

    @abstractmethod
    async def claim(self, lease: Lease, parts: Sequence[str]) -> None:
        """Make these entries of maps of offsets the owner's; see claims.py. Raises OwnershipLost.

        An owner with a lower epoch, also of another key, saves none of them from now on.
        """

    @abstractmethod
    async def save(self, lease: Lease, progress: OffsetProgress) -> None:
        """Store how far the owner is. Raises OwnershipLost, and stores nothing, unless the epoch is still its own."""

    @abstractmethod
    async def set_offset(
        self, projection: ProjectionId, offset: Offset | None, *, expected: Offset | AnyOffset | None = ANY_OFFSET
    ) -> None:
        """Replace the offset, or clear it with None, under a new epoch. Raises OffsetConflict, UnknownProjection."""

    @abstractmethod
    async def positions(self, name: str) -> dict[str, dict[LogPlace, int]]:
        """By key: up to where in the log everything is done."""

    # What is wanted

    @abstractmethod
    async def desired(self, name: str) -> dict[str, Desired]:
        """What is wanted of each key; a key without a row wants nothing special."""

    @abstractmethod
    async def pause(self, projection: ProjectionId, paused: bool) -> Desired:
        """Want an instance paused, or not. Raises UnknownProjection."""

    @abstractmethod
    async def skip(self, projection: ProjectionId, offset: str) -> Desired:
        """Want an envelope skipped, beside those that are already. Raises UnknownProjection, InvalidInput."""

    @abstractmethod
    async def end_skips(self, projection: ProjectionId, offsets: Collection[str]) -> Desired:
        """Want these skips no longer. Raises UnknownProjection."""

    # Dead letters

    @abstractmethod
    async def bury(self, lease: Lease, letters: Sequence[ProjectionDeadLetter]) -> None:
        """Keep dead letters; the same offset again replaces the one before. Raises OwnershipLost."""

    @abstractmethod
    async def dead_letters(
        self, name: str, key: str | None = None, *, requested: bool = False, limit: int = 1000
    ) -> list[ProjectionDeadLetter]:
        """Dead letters, oldest first."""

    @abstractmethod
    async def request_replay(self, projection: ProjectionId, offset: str | None = None) -> int:
        """Want dead letters handled again: one, or all that can be. How many; the owner follows."""

    @abstractmethod
    async def answer_replay(self, lease: Lease, letter: ProjectionDeadLetter, cause: str | None) -> None:
        """A dead letter was handled (cause None: it goes), or failed again (it stays). Raises OwnershipLost."""

    @abstractmethod
    async def drop_letters(self, projection: ProjectionId, offset: str | None = None) -> int:
        """Forget dead letters, one or all; how many."""

    # All of it

    @abstractmethod
    async def known(self, name: str | None = None) -> list[KnownProjection]:
        """Every projection instance that ever ran here, or that can be taken over."""

    @abstractmethod
    def stamp(self) -> object:
        """Differs from the last one if any process wrote something since; None if that cannot be told cheaply."""

    # Views

    def view(self, copies: Mapping[str, str] | None = None) -> View:
        """The view's tables, each statement on its own. `copies`: tables that stand under another name."""
        raise InvalidProjection("this store has no tables for views")

    def transaction(
        self, lease: Lease, copies: Mapping[str, str] | None = None
    ) -> AbstractAsyncContextManager[ViewTransaction]:
        """View rows and offset together. Raises OwnershipLost before anything is done, ViewChanged at any time."""
        raise InvalidProjection("this store cannot keep view rows and offsets together: use at_least_once")

    @abstractmethod
    async def copies(self, name: str) -> Copies:
        """Which copies of a projection's view there are."""

    @abstractmethod
    async def change_copies(self, name: str, before: Copies, after: Copies) -> bool:
        """Replace that, if it is as it was seen; whether it was."""

    async def update_copies(self, name: str, change: Callable[[Copies], Copies]) -> Copies:
        """Change what is there, again if another writer was quicker; what it is now."""
        while True:
            seen = await self.copies(name)
            after = change(seen)
            if after == seen or await self.change_copies(name, seen, after):
                return after

    async def drop_garbage(self, name: str) -> Copies:
        """Drop the copies that are garbage; then say that they are gone."""
        seen = await self.copies(name)
        while seen.garbage:
            number = seen.garbage[0]
            names, tables = seen.names(number), seen.tables.get(number, seen.tables.get(seen.current, ()))
            await self.drop_tables([names.get(table.lower(), table) for table in tables])
            failpoint("clean.tables")
            await self.erase(copy_name(name, number))
            left = {one: found for one, found in seen.tables.items() if one != number}
            versions = {one: found for one, found in seen.versions.items() if one != number}
            after = replace(seen, garbage=seen.garbage[1:], tables=left, versions=versions)
            await self.change_copies(name, seen, after)
            seen = await self.copies(name)
        return seen

    async def copy_tables(self, copies: Mapping[str, str]) -> None:
        """Make empty tables like these, under other names, unless they are there. Raises InvalidProjection."""
        raise InvalidProjection("this store has no tables for views")

    async def drop_tables(self, tables: Sequence[str]) -> None:
        """Drop tables of views, if they are there."""
        raise InvalidProjection("this store has no tables for views")

    def recount(self, name: str, tables: Sequence[str]) -> AbstractAsyncContextManager[Recount]:
        """Make empty tables like these of a view, for a recount; they are gone afterwards. Raises InvalidProjection."""
        raise InvalidProjection("this store has no tables for views")

    @abstractmethod
    async def erase(self, name: str) -> None:
        """Forget a projection as a whole, as if it had never run. Its number as a copy must not come again."""

    @abstractmethod
    async def close(self) -> None:
        """Let go of the files or connections."""
