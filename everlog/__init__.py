"""Everlog keeps events: append to journals, read them back, let Spark fold the log into tables."""

from everlog import sync
from everlog.client import Everlog, connect
from everlog.clock import Clock, SystemClock
from everlog.config import Config, load_config
from everlog.errors import (
    Conflict,
    EverlogError,
    InvalidInput,
    JournalHalted,
    JournalNotFound,
    OffsetConflict,
    OutcomeUnknown,
    Overtaken,
    StillBehind,
    UnknownProjection,
)
from everlog.journal.events import Event, EventRecord, Json
from everlog.journal.journal import Journal, Token
from everlog.journal.quarantine import WaitingItem
from everlog.journal.snapshots import Criteria, Recovered
from everlog.journal.values import Position, SeqNr, SeqRange
from everlog.pipeline.expire import ExpireReport
from everlog.pipeline.status import PartitionStatus, PipelineStatus, Status
from everlog.projections.handlers import ActorHandler, Handler, Mailbox, StatefulHandler
from everlog.projections.ids import ProjectionId
from everlog.projections.lifecycle import Restart
from everlog.projections.observers import Observer
from everlog.projections.projection import Projection, projection
from everlog.projections.records import records
from everlog.projections.recovery import Recovery
from everlog.projections.runner import Runner
from everlog.projections.strategies import at_least_once, at_most_once, exactly_once, flow, grouped
from everlog.store.base import Snapshot
from everlog.version import __version__

__all__ = [
    "ActorHandler",
    "Clock",
    "Config",
    "Conflict",
    "Criteria",
    "Event",
    "EventRecord",
    "Everlog",
    "EverlogError",
    "ExpireReport",
    "Handler",
    "InvalidInput",
    "Journal",
    "JournalHalted",
    "JournalNotFound",
    "Json",
    "Mailbox",
    "Observer",
    "OffsetConflict",
    "OutcomeUnknown",
    "Overtaken",
    "PartitionStatus",
    "PipelineStatus",
    "Position",
    "Projection",
    "ProjectionId",
    "Recovered",
    "Recovery",
    "Restart",
    "Runner",
    "SeqNr",
    "SeqRange",
    "Snapshot",
    "StatefulHandler",
    "Status",
    "StillBehind",
    "SystemClock",
    "Token",
    "UnknownProjection",
    "WaitingItem",
    "__version__",
    "at_least_once",
    "at_most_once",
    "connect",
    "exactly_once",
    "flow",
    "grouped",
    "load_config",
    "projection",
    "records",
    "sync",
]
