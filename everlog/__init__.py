"""Everlog keeps events: append to journals, read them back, let Spark fold the log into tables."""

from everlog import sync
from everlog.client import Everlog, connect
from everlog.clock import Clock, SystemClock
from everlog.config import Config, load_config
from everlog.errors import (
    Conflict,
    DocumentConflict,
    DocumentNotFound,
    EverlogError,
    InvalidDocument,
    InvalidInput,
    JournalHalted,
    JournalNotFound,
    KeyBusy,
    LeaseLost,
    NotReplicated,
    OutcomeUnknown,
    Overtaken,
    PreconditionFailed,
    QueueNotFound,
    WriteUnfinished,
)
from everlog.journal.events import Event, EventRecord, Json
from everlog.journal.journal import Journal, Token
from everlog.journal.quarantine import WaitingItem
from everlog.journal.snapshots import Criteria, Recovered
from everlog.journal.values import Position, SeqNr, SeqRange
from everlog.pipeline.expire import ExpireReport
from everlog.pipeline.status import PartitionStatus, PipelineStatus, Status
from everlog.queues.job import GiveUp, JobFunction, Retry, job
from everlog.queues.operations import Stats as QueueStats
from everlog.queues.options import QueueOptions
from everlog.queues.priority import Priority
from everlog.queues.queue import DeadJob, Job, JobInfo, Queue, Receipt
from everlog.queues.worker import Worker
from everlog.store.base import Snapshot
from everlog.tags.tag import Tag, TaggedEvent, TagInfo
from everlog.tags.timeuuid import TimeUuid
from everlog.version import __version__

__all__ = [
    "Clock",
    "Config",
    "Conflict",
    "Criteria",
    "DeadJob",
    "DocumentConflict",
    "DocumentNotFound",
    "Event",
    "EventRecord",
    "Everlog",
    "EverlogError",
    "ExpireReport",
    "GiveUp",
    "InvalidDocument",
    "InvalidInput",
    "Job",
    "JobFunction",
    "JobInfo",
    "Journal",
    "JournalHalted",
    "JournalNotFound",
    "Json",
    "KeyBusy",
    "LeaseLost",
    "NotReplicated",
    "OutcomeUnknown",
    "Overtaken",
    "PartitionStatus",
    "PipelineStatus",
    "Position",
    "PreconditionFailed",
    "Priority",
    "Queue",
    "QueueNotFound",
    "QueueOptions",
    "QueueStats",
    "Receipt",
    "Recovered",
    "Retry",
    "SeqNr",
    "SeqRange",
    "Snapshot",
    "Status",
    "SystemClock",
    "Tag",
    "TagInfo",
    "TaggedEvent",
    "TimeUuid",
    "Token",
    "WaitingItem",
    "Worker",
    "WriteUnfinished",
    "__version__",
    "connect",
    "job",
    "load_config",
    "sync",
]
