"""Errors of work queues."""

from __future__ import annotations

from everlog.errors.base import EverlogError, InvalidInput
from everlog.errors.journal import OutcomeUnknown
from everlog.errors.storage import Busy


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
            "into the queue, or raise max_payload_bytes"
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


class AnswerLost(OutcomeUnknown):
    """The owner of the queue did not answer; what was asked may or may not have been done. Repeating it is safe.

    A put with the same key merges into itself; done, fail and release change nothing the second time; what a lost claim
    took is given again when its lease ends.
    """

    def __init__(self, queue: str, reason: str) -> None:
        message = f"{queue}: {reason}; it may or may not have been done: repeat it, a put with the same key"
        EverlogError.__init__(self, message)
        self.queue = self.key = queue
        self.append_id = ""
        self.reason = reason


class QueueNotFound(EverlogError):
    """There is no queue of this name yet: the first put makes it, or a declaration."""

    def __init__(self, name: str, known: list[str]) -> None:
        there = ", ".join(known[:20]) or "none yet"
        super().__init__(f"there is no queue {name!r}; there are: {there}: put a job into it, or declare it")
        self.name = name
        self.known = known


class ScheduleNotFound(EverlogError):
    """The queue has no schedule of this name: see its list."""

    def __init__(self, queue: str, name: str, known: list[str]) -> None:
        there = ", ".join(known[:20]) or "none"
        super().__init__(f"the queue {queue!r} has no schedule {name!r}; there are: {there}")
        self.queue = queue
        self.name = name
        self.known = known


class LeaseLost(EverlogError):
    """The job timed out and was given to another worker, or is gone: stop working on it; nothing was changed."""

    def __init__(self, queue: str, entry: int, token: int) -> None:
        super().__init__(f"{queue}: the lease {entry}/{token} is no longer held: stop this work, another has it")
        self.queue = queue
        self.entry = entry
        self.token = token


class KeyBusy(EverlogError):
    """A job with this key is running, and the queue has on_busy="reject", or "drop" for a revival: try again later."""

    retriable = True

    def __init__(self, queue: str, entry: int) -> None:
        super().__init__(f"{queue}: a job with this key is running ({entry}): put it again when that is done")
        self.queue = queue
        self.entry = entry


class JobsRunning(EverlogError):
    """A queue is not deleted while workers are at its jobs, unless that is wanted."""

    retriable = True

    def __init__(self, queue: str, running: int) -> None:
        jobs = "1 job runs" if running == 1 else f"{running} jobs run"
        super().__init__(
            f"{jobs} in the queue {queue!r}: wait until they have ended, or say delete(running=True): their workers "
            "then lose them"
        )
        self.queue = queue
        self.running = running


class DeclarationRefused(EverlogError):
    """The queue holds rows that a new declaration could not serve; drain the queue first."""


class Deposed(Busy):
    """Another process took over the queue; what was not answered was not acknowledged. Try again."""


class OwnedElsewhere(Busy):
    """Another process owns the queue and lives: work there, or try again when it is gone."""

    def __init__(self, queue: str, owner: str) -> None:
        super().__init__(f"the queue {queue} is owned by {owner}, which lives: work there, or stop it and try again")
        self.queue = queue
        self.owner = owner
