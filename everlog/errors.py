"""Every error that Everlog raises on purpose.

    EverlogError
    ├── InvalidInput              the call itself is wrong; nothing was sent or stored
    │   ├── InvalidId
    │   ├── InvalidSeqNr
    │   ├── InvalidRange
    │   ├── EmptyAppend
    │   ├── AppendTooLarge
    │   ├── RecordTooLarge
    │   ├── InvalidPosition
    │   ├── InvalidDocument       a path, a body, a filter or a parameter of a document request
    │   ├── InvalidProjection
    │   ├── InvalidTag
    │   ├── InvalidOffset
    │   ├── InvalidConfig
    │   ├── NotEnabled
    │   ├── InvalidKey
    │   ├── InvalidPriority
    │   ├── InvalidHandle
    │   ├── PayloadTooLarge
    │   ├── InvalidDeclaration
    │   └── NotTransactional
    ├── Conflict                  another append won; read again and decide again
    ├── OutcomeUnknown            a time-out: it may or may not have happened; retry with append_id
    │   └── AnswerLost            the same of an operation on a queue; repeat it
    ├── JournalNotFound           the journal does not exist (any more)
    ├── JournalHalted             a record of this journal cannot be decoded
    ├── QueueNotFound             nobody has put anything into a queue of this name, or declared it
    ├── LeaseLost                 the job is not this worker's any more; nothing was changed
    ├── KeyBusy                   the queue takes no work for a key that is being processed
    ├── DeclarationRefused        the queue's rows do not allow this change of its declaration
    ├── Overtaken                 the journal changed under a read too often; read again
    ├── NotReplicated             the pipeline has not got as far as a token; wait, or start it
    ├── MissingEvent              a journal that must have no gaps has one
    ├── ViewIncomplete            a view that others write lacks events
    │   ├── EventsMissing
    │   ├── TooManyMissing
    │   └── SeqNrMissing
    ├── IntegrityViolated         the tables hold what no fold can have written
    ├── ForeignWriter             somebody else writes into these tables
    ├── LogTruncated              records that were not replicated yet are gone from the log
    ├── TopicReplaced             the log's topic is not the one these tables were filled from
    ├── TopicRetired              nothing is written to this topic any more
    ├── CopyRefused               the copy of a journal would meet another one there
    ├── StorageFailed             the files or servers cannot be used
    │   ├── DiskFull
    │   ├── NotWritable
    │   ├── NewerVersion
    │   ├── Unreachable
    │   ├── AccessDenied
    │   ├── Refused
    │   ├── TooFewReplicas
    │   ├── TopicMissing
    │   ├── UnsuitableTopic
    │   ├── Unacknowledged
    │   └── Busy
    │       ├── Deposed
    │       └── OwnedElsewhere
    ├── ReplicationFailed         the pipeline gave up on a batch; it will try again
    ├── MalformedRecord           a log record that breaks the wire format
    ├── UnknownProjection         no projection of this name and key was ever started here
    ├── OffsetConflict            the offset is not the expected one; look again
    ├── StillBehind               a projection has not come so far yet; wait longer, or start it
    ├── OwnershipLost             another instance, or a command, took this projection over
    ├── HandlerFailed             a handler did what no handler may do
    │   └── HandlerTimeout
    ├── ClusterFailed             the local cluster cannot be started
    │   ├── MissingProgram
    │   ├── DownloadFailed
    │   ├── PortTaken
    │   └── ServerFailed
    ├── DocumentRefused           the request is sound, the document is not in a state for it; nothing was stored
    │   ├── DocumentNotFound
    │   ├── DocumentConflict
    │   ├── PreconditionFailed
    │   ├── MessageReused
    │   └── TooManyPending
    ├── QueryLimited              a query would read more than it may
    ├── WriteUnfinished           a document write whose outcome is unknown, or whose event is not out yet
    └── MissingExtra              an optional dependency is not installed

The message says what happened and what to do; the facts are attributes.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID


class EverlogError(Exception):
    """The root of all errors of this package."""

    retriable = False


class InvalidInput(EverlogError, ValueError):
    """The call is wrong; nothing was sent or stored."""


class InvalidId(InvalidInput):
    """A journal's id is empty, too long, or not text."""


class InvalidSeqNr(InvalidInput):
    """A sequence number is outside 1 to 2^63-1."""


class InvalidRange(InvalidInput):
    """A range ends before it begins."""


class EmptyAppend(InvalidInput):
    """An append needs at least one event."""


class AppendTooLarge(InvalidInput):
    """An append exceeds the configured size."""

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(
            f"this append is {size:,} bytes, the limit is {limit:,}: append fewer events at once, "
            "or raise [journal] max_append_bytes"
        )
        self.size = size
        self.limit = limit


class RecordTooLarge(InvalidInput):
    """The log does not take a record of this size; nothing was stored."""


class InvalidPosition(InvalidInput):
    """A token that this log has never handed out."""


class InvalidProjection(InvalidInput):
    """A projection is declared in a way that cannot work: a blank name, a handler that does not fit."""


class InvalidTag(InvalidInput):
    """A tag is empty, too long, or not text."""


class InvalidOffset(InvalidInput):
    """An offset of a type or value that this source cannot have, or from a future that nobody has reached."""


class InvalidConfig(InvalidInput):
    """A setting is unknown or out of range."""


class NotEnabled(InvalidInput):
    """The settings say that the tables for this query are not kept."""


class InvalidKey(InvalidInput):
    """A job's key is missing, too long, or of a type that a queue does not know."""


class InvalidPriority(InvalidInput):
    """A priority is outside 0 to 255."""


class InvalidHandle(InvalidInput):
    """A lease was presented to another queue than the one that gave it."""


class PayloadTooLarge(InvalidInput):
    """The data of a job exceeds the limit of its queue."""

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(
            f"the data of this job is {size:,} bytes, the limit is {limit:,}: store it elsewhere and put its address "
            "into the queue, or raise max_payload"
        )
        self.size = size
        self.limit = limit


class InvalidDeclaration(InvalidInput):
    """A declaration of a queue is wrong; `file`, `line` and `attribute` say where."""

    def __init__(
        self, message: str, *, file: str | None = None, line: int | None = None, attribute: str | None = None
    ) -> None:
        place = "".join([f"{file}: " if file else "", f"line {line}: " if line else ""])
        super().__init__(f"{place}{message}")
        self.file = file
        self.line = line
        self.attribute = attribute


class NotTransactional(InvalidInput):
    """This queue cannot take jobs inside the caller's own transaction."""


class InvalidDocument(InvalidInput):
    """A document request is wrong; `code` says in which way and never changes its spelling."""

    def __init__(self, code: str, message: str, **facts: object) -> None:
        super().__init__(message)
        self.code = code
        self.facts = facts


class Conflict(EverlogError):
    """The journal is not where the append expected it; nothing of the append was stored."""

    def __init__(self, key: str, expected: int, actual: int) -> None:
        super().__init__(
            f"{key}: expected the journal at seqNr {expected}, it is at {actual}: read it again, then decide again"
        )
        self.key = key
        self.expected = expected
        self.actual = actual


class OutcomeUnknown(EverlogError):
    """Nobody can say yet whether the append happened; retry it with `append_id` to find out."""

    retriable = True

    def __init__(self, key: str, append_id: str, reason: str) -> None:
        super().__init__(
            f"{key}: {reason}; the append may or may not be in the log: "
            f"repeat it with append_id={append_id!r}, it is then stored once (unless the journal is purged meanwhile)"
        )
        self.key = key
        self.append_id = append_id
        self.reason = reason


class AnswerLost(OutcomeUnknown):
    """Whoever owns the queue did not answer; what was asked may or may not have been done. Repeating it is safe.

    A put merges into itself; done, fail and release change nothing the second time; what a lost claim took is given
    again when its lease ends.
    """

    def __init__(self, queue: str, reason: str) -> None:
        message = f"{queue}: {reason}; it may or may not have been done: repeat it, that does no harm"
        EverlogError.__init__(self, message)
        self.queue = self.key = queue
        self.append_id = ""
        self.reason = reason


class JournalNotFound(EverlogError):
    """The journal was never written, or was purged."""


class JournalHalted(EverlogError):
    """A record of this journal cannot be decoded; it and what follows wait in quarantine.

    `append_id` is set if an append got into the log behind that record: it waits there too, so repeat it with this
    id when the journal goes on; it is then stored once.
    """

    def __init__(self, key: str, partition: int, offset: int, append_id: str | None = None) -> None:
        waits = f"; this append waits behind it, repeat it later with append_id={append_id!r}" if append_id else ""
        super().__init__(
            f"{key}: the record at partition {partition}, offset {offset} cannot be applied: look at it with "
            f"'everlog quarantine show', then 'everlog quarantine retry' or 'skip'{waits}"
        )
        self.key = key
        self.partition = partition
        self.offset = offset
        self.append_id = append_id


class QueueNotFound(EverlogError):
    """There is no queue of this name yet: the first put makes it, or a declaration."""

    def __init__(self, name: str, known: list[str]) -> None:
        there = ", ".join(known[:20]) or "none yet"
        super().__init__(f"there is no queue {name!r}; there are: {there}: put a job into it, or declare it")
        self.name = name
        self.known = known


class LeaseLost(EverlogError):
    """The job timed out and was given to somebody else, or is gone: stop working on it; nothing was changed."""

    def __init__(self, queue: str, entry: int, token: int) -> None:
        super().__init__(f"{queue}: the lease {entry}/{token} is not held any more: stop this work, another has it")
        self.queue = queue
        self.entry = entry
        self.token = token


class KeyBusy(EverlogError):
    """The queue has on_busy="reject", and a job with this key is running; put it again when that is done."""

    retriable = True

    def __init__(self, queue: str, entry: int) -> None:
        super().__init__(f"{queue}: a job with this key is running ({entry}): put it again when that is done")
        self.queue = queue
        self.entry = entry


class DeclarationRefused(EverlogError):
    """The queue holds rows that a new declaration could not serve; drain the queue first."""


class Overtaken(EverlogError):
    """The journal was deleted from or purged while it was being read; read it again."""

    retriable = True


class NotReplicated(EverlogError):
    """The tags do not hold what lies at this position of the log yet."""

    retriable = True


class MissingEvent(EverlogError):
    """A journal that was to have no gaps has one."""

    def __init__(self, key: str, expected: int, found: int) -> None:
        super().__init__(
            f"{key}: seqNr {expected} does not exist, the next one is {found}: read with gap_free=False to go on"
        )
        self.key = key
        self.expected = expected
        self.found = found


class ViewIncomplete(EverlogError):
    """A view that others write lacks events which must have been there."""


class EventsMissing(ViewIncomplete):
    """Events of a tag did not appear in time; a consumer that may see events twice can go on from `min_offset`."""

    retriable = True

    def __init__(self, tag: str, missing: dict[str, list[int]], min_offset: UUID, max_offset: UUID) -> None:
        some = ", ".join(f"{pid}: {_numbers(numbers)}" for pid, numbers in list(missing.items())[:10])
        super().__init__(
            f"tag {tag}: events did not appear within [foreign] gap_timeout (number per journal and tag: {some}), "
            f"between {min_offset} and {max_offset}: see that their writer runs, then read again from {min_offset}"
        )
        self.tag = tag
        self.missing = missing
        self.min_offset = min_offset
        self.max_offset = max_offset


class TooManyMissing(ViewIncomplete):
    """So many events of one journal are missing from a tag that looking for them is no use."""

    def __init__(self, tag: str, persistence_id: str, count: int, limit: int) -> None:
        super().__init__(
            f"tag {tag}: {count:,} events of {persistence_id} are missing, more than [foreign] max_missing_to_search "
            f"({limit:,}): rebuild the view with its own tools, or start after an offset behind the hole"
        )
        self.tag = tag
        self.persistence_id = persistence_id
        self.count = count
        self.limit = limit


class SeqNrMissing(ViewIncomplete):
    """An event of a journal that others write did not appear in time."""

    retriable = True

    def __init__(self, persistence_id: str, expected: int, seen: int) -> None:
        super().__init__(
            f"{persistence_id}: seqNr {expected} did not appear although {seen} is there: see that its writer runs and "
            "read again, or accept gaps with [foreign] gap_free_sequence_numbers = false"
        )
        self.persistence_id = persistence_id
        self.expected = expected
        self.seen = seen


class IntegrityViolated(EverlogError):
    """The tables hold what no fold of the log can have written."""


class ForeignWriter(EverlogError):
    """A head was written by something else than this pipeline; stop the other writer first."""


class LogTruncated(EverlogError):
    """Records that were not replicated yet are gone from the log."""

    def __init__(self, topic: str, partition: int, message: str) -> None:
        super().__init__(f"{topic}, partition {partition}: {message}")
        self.topic = topic
        self.partition = partition


class TopicReplaced(EverlogError):
    """The topic in the log is not the one that the tables were filled from."""


class TopicRetired(EverlogError):
    """The topic is retired for good: its journals can be read, and nothing is written to it any more."""

    def __init__(self, topic: str) -> None:
        super().__init__(
            f"the topic {topic} is retired, it can only be read: write to another one; "
            f"'everlog journal copy {topic} NEW' brings its journals there, with their seqNrs"
        )
        self.topic = topic


class CopyRefused(EverlogError):
    """What stands in the other topic under a journal's id is not the beginning of its copy; nothing was added to it."""

    def __init__(self, key: str, reason: str) -> None:
        super().__init__(f"{key}: {reason}")
        self.key = key
        self.reason = reason


def rescue(topic: str = "FROM") -> str:
    """What helps a topic whose log is gone or another one: what is in the tables goes on in a new topic."""
    return (
        f"restore the old log; or 'everlog journal copy {topic} NEW' brings what is in the tables into a new topic, "
        f"with its seqNrs, and 'everlog journal retire {topic}' ends this one"
    )


class StorageFailed(EverlogError):
    """A file or a server of the log or the store cannot be used."""


class DiskFull(StorageFailed):
    """No space is left; free some and repeat the call, nothing was stored."""

    retriable = True


class NotWritable(StorageFailed):
    """The data folder or a file in it may not be written by this user."""


class NewerVersion(StorageFailed):
    """The data was written by a newer Everlog; upgrade this one."""


class Unreachable(StorageFailed):
    """No server answers, or not in time; try again. A write may or may not have happened: repeat it."""

    retriable = True


class AccessDenied(StorageFailed):
    """The server does not know these credentials, or they lack a right."""


class Refused(StorageFailed):
    """The server refuses this one statement for good, for example because a row is too large."""


class TooFewReplicas(StorageFailed):
    """The log does not store anything now, because too few copies of it are up; nothing was stored."""

    retriable = True


class TopicMissing(StorageFailed):
    """The topic is not in the log any more."""


class UnsuitableTopic(StorageFailed):
    """A topic of the log has settings under which records would be lost."""


class Unacknowledged(StorageFailed):
    """The log cannot say whether it stored the record; an append turns this into OutcomeUnknown."""

    retriable = True


class Busy(StorageFailed):
    """Another process held the file, or the way to the log was full, for too long; try again."""

    retriable = True


class Deposed(Busy):
    """Another process took over the queue; what was not answered was not acknowledged. Try again."""


class OwnedElsewhere(Busy):
    """Another process owns the queue and lives: work there, or try again when it is gone."""

    def __init__(self, queue: str, owner: str) -> None:
        super().__init__(f"the queue {queue} is owned by {owner}, which lives: work there, or stop it and try again")
        self.queue = queue
        self.owner = owner


class ReplicationFailed(EverlogError):
    """A micro-batch could not be applied; nothing was published and it will be tried again."""

    retriable = True


class MalformedRecord(EverlogError):
    """A log record breaks the wire format."""


class UnknownProjection(EverlogError):
    """No projection of this name and key was ever started here."""

    def __init__(self, name: str, key: str | None = None) -> None:
        what = name if key is None else f"{name}, key {key}"
        super().__init__(
            f"there is no projection {what}: 'everlog projections list' shows those that were started here"
        )
        self.name = name
        self.key = key


class OffsetConflict(EverlogError):
    """The stored offset is not the one that the change expected; nothing was changed."""

    def __init__(self, projection: str, expected: object, actual: object) -> None:
        super().__init__(f"{projection}: expected the offset {expected}, it is {actual}: look at it again, then decide")
        self.projection = projection
        self.expected = expected
        self.actual = actual


class StillBehind(EverlogError):
    """A projection has not come so far yet, or its owner has not followed a command yet."""

    retriable = True


class OwnershipLost(EverlogError):
    """Another instance, or a command, took this projection over; nothing of this write was stored."""

    def __init__(self, projection: str, epoch: int) -> None:
        super().__init__(f"{projection}: taken over by another instance or a command since epoch {epoch}")
        self.projection = projection
        self.epoch = epoch


class HandlerFailed(EverlogError):
    """A handler returned what no handler may return, or its flow is out of order."""


class HandlerTimeout(HandlerFailed):
    """A handler did not come back in time."""


class ClusterFailed(EverlogError):
    """The local cluster, or something that it needs, is not to be had."""


class MissingProgram(ClusterFailed):
    """A program that this needs is not installed, or not in the version that it needs."""


class DownloadFailed(ClusterFailed):
    """The jars did not come, or are not the ones that were expected."""

    retriable = True


class PortTaken(ClusterFailed):
    """An address of the cluster cannot be listened at."""

    def __init__(self, server: str, address: str, message: str) -> None:
        super().__init__(f"{server} cannot listen at {address}: {message}")
        self.server = server
        self.address = address


class ServerFailed(ClusterFailed):
    """A server ended, or did not answer in time; `lines` are the last ones that it wrote."""

    def __init__(self, server: str, what: str, log: str, lines: list[str]) -> None:
        last = "; it wrote last: " + " | ".join(lines) if lines else ""
        super().__init__(f"{server} {what}: see {log}{last}")
        self.server = server
        self.log = log
        self.lines = lines


class DocumentRefused(EverlogError):
    """The document is not in a state for this request; nothing was stored. `code` never changes its spelling."""

    def __init__(self, code: str, message: str, **facts: object) -> None:
        super().__init__(message)
        self.code = code
        self.facts = facts


class DocumentNotFound(DocumentRefused):
    """There is no such document, element, collection, index or transaction."""


class DocumentConflict(DocumentRefused):
    """What is stored does not allow this request."""


class PreconditionFailed(DocumentRefused):
    """If-Match or If-None-Match does not hold."""


class MessageReused(DocumentRefused):
    """A message id came again, with another request."""


class TooManyPending(DocumentRefused):
    """Too many events of this document wait for their publication; try again."""

    retriable = True


class QueryLimited(EverlogError):
    """A query read as much as it may and is not done; an index would help, `explain=1` says which."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class WriteUnfinished(EverlogError):
    """Nobody can say yet whether the write happened, or its event is not out yet; repeat it with its message id."""

    retriable = True

    def __init__(self, message: str, *, message_id: str, transaction_id: str | None = None) -> None:
        super().__init__(message)
        self.code = "request_timeout"
        self.message_id = message_id
        self.transaction_id = transaction_id


class MissingExtra(EverlogError):
    """An optional dependency is missing."""

    def __init__(self, extra: str) -> None:
        super().__init__(f"this needs an optional part of Everlog: pip install 'everlog[{extra}]'")
        self.extra = extra


def _numbers(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers[:10])) + (", …" if len(numbers) > 10 else "")
