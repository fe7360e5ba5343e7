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
    OutcomeUnknown,
    Overtaken,
    PreconditionFailed,
    WriteUnfinished,
)
from everlog.journal.events import Event, EventRecord, Json
from everlog.journal.journal import Journal, Token
from everlog.journal.quarantine import WaitingItem
from everlog.journal.snapshots import Criteria, Recovered
from everlog.journal.values import Position, SeqNr, SeqRange
from everlog.pipeline.expire import ExpireReport
from everlog.pipeline.status import PartitionStatus, PipelineStatus, Status
from everlog.store.base import Snapshot
from everlog.version import __version__

__all__ = [
    "Clock",
    "Config",
    "Conflict",
    "Criteria",
    "DocumentConflict",
    "DocumentNotFound",
    "Event",
    "EventRecord",
    "Everlog",
    "EverlogError",
    "ExpireReport",
    "InvalidDocument",
    "InvalidInput",
    "Journal",
    "JournalHalted",
    "JournalNotFound",
    "Json",
    "OutcomeUnknown",
    "Overtaken",
    "PartitionStatus",
    "PipelineStatus",
    "Position",
    "PreconditionFailed",
    "Recovered",
    "SeqNr",
    "SeqRange",
    "Snapshot",
    "Status",
    "SystemClock",
    "Token",
    "WaitingItem",
    "WriteUnfinished",
    "__version__",
    "connect",
    "load_config",
    "sync",
]
