"""Every error that Everlog raises on purpose.

    EverlogError
    ├── InvalidInput              the call itself is wrong; nothing was sent or stored
    │   ├── InvalidId
    │   ├── InvalidSeqNr
    │   ├── InvalidRange
    │   ├── EmptyAppend
    │   ├── AppendTooLarge
    │   ├── AppendIdReused        an idempotency key that other events had before
    │   ├── SnapshotTooLarge
    │   ├── RecordTooLarge
    │   ├── InvalidPosition
    │   ├── InvalidEventType      a class is not declared as an event, or not as one that belongs here
    │   ├── InvalidDocument       a path, a body, a filter or a parameter of a document request
    │   │   └── FilterTooExpensive
    │   ├── InvalidProjection
    │   ├── SystemTopic           a part of Everlog keeps this topic, and alone writes into it
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
    ├── OutcomeDeleted            a repeated append whose place was deleted since: its outcome stays unknown
    ├── JournalNotFound           the journal does not exist (any more)
    ├── JournalHalted             a record of this journal cannot be decoded
    ├── QueueNotFound             no queue of this name was declared, or got a job yet
    ├── ScheduleNotFound          the queue has no schedule of this name
    ├── LeaseLost                 the job is no longer this worker's; nothing was changed
    ├── KeyBusy                   the queue takes no work for a key that is being processed
    ├── JobsRunning               the queue is not deleted while jobs run
    ├── DeclarationRefused        the queue's rows do not allow this change of its declaration
    ├── Overtaken                 the journal changed under a read too often; read again
    ├── NotReplicated             the pipeline has not got as far as a token; wait, or start it
    ├── EventMismatch             a stored event does not fit the class of its type
    ├── UnknownEventType          an aggregate meets an event that is none of its own
    ├── StateLost                 an aggregate's events are deleted, and no snapshot holds what they came to
    ├── MissingEvent              a journal that must have no gaps has one
    ├── ViewIncomplete            a view that others write lacks events
    │   ├── EventsMissing
    │   ├── TooManyMissing
    │   └── SeqNrMissing
    ├── IntegrityViolated         the tables hold what no fold can have written
    ├── ForeignWriter             another program writes into these tables
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
    ├── UnreadableJson            stored JSON that Python cannot show; its text can be read
    ├── UnknownProjection         no projection of this name and key was ever started here
    ├── OffsetConflict            the offset is not the expected one; look again
    ├── StillBehind               a projection has not got that far yet; wait longer, or start it
    ├── OwnershipLost             another instance, or a command, took this projection over
    ├── HandlerFailed             a handler did what no handler may do
    │   └── HandlerTimeout
    ├── ForkedProcess             the log was opened before a fork; connect again in the child
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
    │   ├── TooManyMessages
    │   ├── SchemaViolated        the body does not fit a schema
    │   └── TooManyPending
    ├── QueryLimited              a query would read more than it may
    ├── WriteUnfinished           a document write whose outcome is unknown, or whose event is not published yet
    └── MissingExtra              an optional dependency is not installed

The message says what happened and what to do; the facts are attributes.
"""

from __future__ import annotations

from everlog.errors.base import (
    EverlogError,
    InvalidInput,
)
from everlog.errors.documents import (
    DocumentConflict,
    DocumentNotFound,
    DocumentRefused,
    FilterTooExpensive,
    InvalidDocument,
    MessageReused,
    PreconditionFailed,
    QueryLimited,
    SchemaViolated,
    TooManyMessages,
    TooManyPending,
    WriteUnfinished,
)
from everlog.errors.journal import (
    AppendIdReused,
    AppendTooLarge,
    Conflict,
    EmptyAppend,
    EventMismatch,
    InvalidEventType,
    InvalidId,
    InvalidPosition,
    InvalidRange,
    InvalidSeqNr,
    JournalHalted,
    JournalNotFound,
    MalformedRecord,
    MissingEvent,
    OutcomeDeleted,
    OutcomeUnknown,
    Overtaken,
    SnapshotTooLarge,
    StateLost,
    SystemTopic,
    UnknownEventType,
    UnreadableJson,
)
from everlog.errors.projections import (
    HandlerFailed,
    HandlerTimeout,
    InvalidProjection,
    OffsetConflict,
    OwnershipLost,
    StillBehind,
    UnknownProjection,
)
from everlog.errors.queues import (
    AnswerLost,
    DeclarationRefused,
    Deposed,
    InvalidDeclaration,
    InvalidHandle,
    InvalidKey,
    InvalidPriority,
    JobsRunning,
    KeyBusy,
    LeaseLost,
    NotTransactional,
    OwnedElsewhere,
    PayloadTooLarge,
    QueueNotFound,
    ScheduleNotFound,
)
from everlog.errors.setup import (
    ClusterFailed,
    DownloadFailed,
    ForkedProcess,
    InvalidConfig,
    MissingExtra,
    MissingProgram,
    PortTaken,
    ServerFailed,
)
from everlog.errors.storage import (
    AccessDenied,
    Busy,
    CopyRefused,
    DiskFull,
    ForeignWriter,
    IntegrityViolated,
    LogTruncated,
    NewerVersion,
    NotWritable,
    RecordTooLarge,
    Refused,
    ReplicationFailed,
    StorageFailed,
    TooFewReplicas,
    TopicMissing,
    TopicReplaced,
    TopicRetired,
    Unacknowledged,
    Unreachable,
    UnsuitableTopic,
)
from everlog.errors.tags import (
    EventsMissing,
    InvalidOffset,
    InvalidTag,
    NotEnabled,
    NotReplicated,
    SeqNrMissing,
    TooManyMissing,
    ViewIncomplete,
)

__all__ = [
    "AccessDenied",
    "AnswerLost",
    "AppendIdReused",
    "AppendTooLarge",
    "Busy",
    "ClusterFailed",
    "Conflict",
    "CopyRefused",
    "DeclarationRefused",
    "Deposed",
    "DiskFull",
    "DocumentConflict",
    "DocumentNotFound",
    "DocumentRefused",
    "DownloadFailed",
    "EmptyAppend",
    "EventMismatch",
    "EventsMissing",
    "EverlogError",
    "FilterTooExpensive",
    "ForeignWriter",
    "ForkedProcess",
    "HandlerFailed",
    "HandlerTimeout",
    "IntegrityViolated",
    "InvalidConfig",
    "InvalidDeclaration",
    "InvalidDocument",
    "InvalidEventType",
    "InvalidHandle",
    "InvalidId",
    "InvalidInput",
    "InvalidKey",
    "InvalidOffset",
    "InvalidPosition",
    "InvalidPriority",
    "InvalidProjection",
    "InvalidRange",
    "InvalidSeqNr",
    "InvalidTag",
    "JobsRunning",
    "JournalHalted",
    "JournalNotFound",
    "KeyBusy",
    "LeaseLost",
    "LogTruncated",
    "MalformedRecord",
    "MessageReused",
    "MissingEvent",
    "MissingExtra",
    "MissingProgram",
    "NewerVersion",
    "NotEnabled",
    "NotReplicated",
    "NotTransactional",
    "NotWritable",
    "OffsetConflict",
    "OutcomeDeleted",
    "OutcomeUnknown",
    "Overtaken",
    "OwnedElsewhere",
    "OwnershipLost",
    "PayloadTooLarge",
    "PortTaken",
    "PreconditionFailed",
    "QueryLimited",
    "QueueNotFound",
    "RecordTooLarge",
    "Refused",
    "ReplicationFailed",
    "ScheduleNotFound",
    "SchemaViolated",
    "SeqNrMissing",
    "ServerFailed",
    "SnapshotTooLarge",
    "StateLost",
    "StillBehind",
    "StorageFailed",
    "SystemTopic",
    "TooFewReplicas",
    "TooManyMessages",
    "TooManyMissing",
    "TooManyPending",
    "TopicMissing",
    "TopicReplaced",
    "TopicRetired",
    "Unacknowledged",
    "UnknownEventType",
    "UnknownProjection",
    "Unreachable",
    "UnreadableJson",
    "UnsuitableTopic",
    "ViewIncomplete",
    "WriteUnfinished",
]

for _name in __all__:
    globals()[_name].__module__ = __name__  # so that tracebacks name an error as it is imported
