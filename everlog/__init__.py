"""Everlog keeps events: append to journals, read them back, let Spark fold the log into tables."""

from everlog import sync
from everlog.api import Everlog
from everlog.client import connect
from everlog.config import Config, load_config
from everlog.config.queue_options import QueueOptions
from everlog.core.event_types import event, upcast
from everlog.core.events import Event, EventRecord, Json
from everlog.core.timeuuid import TimeUuid
from everlog.core.values import Position, SeqNr, SeqRange, Version
from everlog.errors import (
    AnswerLost,
    Conflict,
    DocumentConflict,
    DocumentNotFound,
    EventMismatch,
    EverlogError,
    InvalidDocument,
    InvalidEventType,
    InvalidInput,
    JobsRunning,
    JournalHalted,
    JournalNotFound,
    KeyBusy,
    LeaseLost,
    NotReplicated,
    OffsetConflict,
    OutcomeUnknown,
    Overtaken,
    PreconditionFailed,
    QueueNotFound,
    ScheduleNotFound,
    SchemaViolated,
    StateLost,
    StillBehind,
    SystemTopic,
    TopicRetired,
    UnknownEventType,
    UnknownProjection,
    UnreadableJson,
    WriteUnfinished,
)
from everlog.journal.aggregate import Aggregate
from everlog.journal.expiry import ExpireReport
from everlog.journal.journal import Journal, Token
from everlog.journal.quarantine import WaitingItem
from everlog.journal.snapshots import Criteria, Recovered
from everlog.journal.typed_journal import TypedJournal
from everlog.pekko.source import pekko_tag
from everlog.pipeline.status import PartitionStatus, PipelineStatus, Status
from everlog.projections.event_source import AcceptedEvent, events
from everlog.projections.handlers import ActorHandler, Handler, Mailbox, StatefulHandler
from everlog.projections.lifecycle import Restart
from everlog.projections.observers import Observer
from everlog.projections.projection import Projection, projection
from everlog.projections.projection_id import ProjectionId
from everlog.projections.record_source import records
from everlog.projections.recovery import Recovery
from everlog.projections.runner import Runner
from everlog.projections.strategies import at_least_once, at_most_once, exactly_once, flow, grouped, on_spark
from everlog.projections.tag_source import slices, tag
from everlog.queues.history import EndedJob
from everlog.queues.job import DeadJob, Job, JobInfo, NewJob, Receipt
from everlog.queues.job_function import GiveBack, GiveUp, JobFunction, Retry, job
from everlog.queues.job_log import JobLog
from everlog.queues.job_report import JobReport
from everlog.queues.job_sender import JobSender
from everlog.queues.middleware import CallNext, JobMiddleware
from everlog.queues.operations import Stats as QueueStats
from everlog.queues.priority import Priority
from everlog.queues.queue import Queue
from everlog.queues.retry_policy import RetryPolicy
from everlog.queues.schedules import ScheduleInfo
from everlog.queues.worker import Worker
from everlog.runtime.clock import Clock, SystemClock
from everlog.store.port import Snapshot
from everlog.tags.tag import Tag, TaggedEvent, TagInfo
from everlog.version import __version__

__all__ = [
    "AcceptedEvent",
    "ActorHandler",
    "Aggregate",
    "AnswerLost",
    "CallNext",
    "Clock",
    "Config",
    "Conflict",
    "Criteria",
    "DeadJob",
    "DocumentConflict",
    "DocumentNotFound",
    "EndedJob",
    "Event",
    "EventMismatch",
    "EventRecord",
    "Everlog",
    "EverlogError",
    "ExpireReport",
    "GiveBack",
    "GiveUp",
    "Handler",
    "InvalidDocument",
    "InvalidEventType",
    "InvalidInput",
    "Job",
    "JobFunction",
    "JobInfo",
    "JobLog",
    "JobMiddleware",
    "JobReport",
    "JobSender",
    "JobsRunning",
    "Journal",
    "JournalHalted",
    "JournalNotFound",
    "Json",
    "KeyBusy",
    "LeaseLost",
    "Mailbox",
    "NewJob",
    "NotReplicated",
    "Observer",
    "OffsetConflict",
    "OutcomeUnknown",
    "Overtaken",
    "PartitionStatus",
    "PipelineStatus",
    "Position",
    "PreconditionFailed",
    "Priority",
    "Projection",
    "ProjectionId",
    "Queue",
    "QueueNotFound",
    "QueueOptions",
    "QueueStats",
    "Receipt",
    "Recovered",
    "Recovery",
    "Restart",
    "Retry",
    "RetryPolicy",
    "Runner",
    "ScheduleInfo",
    "ScheduleNotFound",
    "SchemaViolated",
    "SeqNr",
    "SeqRange",
    "Snapshot",
    "StateLost",
    "StatefulHandler",
    "Status",
    "StillBehind",
    "SystemClock",
    "SystemTopic",
    "Tag",
    "TagInfo",
    "TaggedEvent",
    "TimeUuid",
    "Token",
    "TopicRetired",
    "TypedJournal",
    "UnknownEventType",
    "UnknownProjection",
    "UnreadableJson",
    "Version",
    "WaitingItem",
    "Worker",
    "WriteUnfinished",
    "__version__",
    "at_least_once",
    "at_most_once",
    "connect",
    "event",
    "events",
    "exactly_once",
    "flow",
    "grouped",
    "job",
    "load_config",
    "on_spark",
    "pekko_tag",
    "projection",
    "records",
    "slices",
    "sync",
    "tag",
    "upcast",
]
