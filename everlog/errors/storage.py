"""Errors of the log, the store, and the pipeline between them."""

from __future__ import annotations

from everlog.errors.base import EverlogError, InvalidInput


class RecordTooLarge(InvalidInput):
    """The log does not take a record of this size; nothing was stored."""


class IntegrityViolated(EverlogError):
    """The tables hold what no fold of the log can have written."""


class ForeignWriter(EverlogError):
    """A head was written by something else than this pipeline; stop the other writer first."""


class LogTruncated(EverlogError):
    """Records that were not replicated yet are gone from the log."""

    def __init__(self, topic: str, partition: int, reason: str) -> None:
        super().__init__(f"{topic}, partition {partition}: {reason}")
        self.topic = topic
        self.partition = partition
        self.reason = reason


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
    """The remedy for a topic whose log is gone or was replaced: what is in the tables continues in a new topic."""
    return (
        f"restore the old log; or 'everlog journal copy {topic} NEW' brings what is in the tables into a new topic, "
        f"with its seqNrs, and 'everlog journal retire {topic}' ends this one"
    )


class StorageFailed(EverlogError):
    """A file or a server of the log or the store cannot be used."""


def needs_storage() -> StorageFailed:
    """The error of a call that a client of a server cannot answer."""
    return StorageFailed("this needs the log and the store themselves, not a server: open the folder or everlog.toml")


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
    """The topic is no longer in the log."""


class UnsuitableTopic(StorageFailed):
    """A topic of the log has settings under which records would be lost."""


class Unacknowledged(StorageFailed):
    """The log cannot say whether it stored the record; an append turns this into OutcomeUnknown."""

    retriable = True


class Busy(StorageFailed):
    """Another process held the file, or the way to the log was full, for too long; try again."""

    retriable = True


class ReplicationFailed(EverlogError):
    """A cycle could not be applied; nothing was published and it will be tried again."""

    retriable = True
