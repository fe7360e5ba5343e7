"""Aggregates: a state that its events add up to, and the decisions that are made from it."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, TypeVar, dataclass_transform

import msgspec

from everlog.core.event_types import EventClasses, EventTypes
from everlog.core.events import Event, EventRecord, Json, encode_payload
from everlog.core.round_trip import changed_field, decode_model, field_names
from everlog.errors import InvalidInput, UnknownEventType
from everlog.journal.journal import Token, check_topic
from everlog.store.port import Snapshot

SNAPSHOT_EVERY = 100
SNAPSHOT_VERSION = "snapshot_version"
_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class AggregateDefinition(msgspec.Struct, frozen=True):
    """What a class of aggregates says about itself. `types` is None where events are plain JSON."""

    topic: str
    types: EventTypes | None
    snapshot_every: int | None
    snapshot_version: int


class AggregatePlace(msgspec.Struct):
    """Where an aggregate stands. `kept`: the seqNr of the snapshot that it was made from; `emitted`: not stored yet.

    `is_anew`: all events up to `version` are deleted, and no snapshot holds what they came to.
    """

    id: str = ""
    version: int = 0
    kept: int = 0
    is_anew: bool = False
    token: Token | None = None
    emitted: list[Event] = []


@dataclass_transform(kw_only_default=True, field_specifiers=(dataclasses.field,))
class Aggregate:
    """A thing with a state and rules, kept as the events that happened to it. Subclass it: it becomes a dataclass.

    class Order(everlog.Aggregate, topic="orders", events=OrderPlaced | OrderPaid):
        paid: bool = False

        def apply(self, event: OrderPlaced | OrderPaid) -> None: ...   # how an event changes the state

        def pay(self) -> None: ...                                     # decides, and emits events

    `topic`: where its journals are. `events`: their classes; without them events are plain JSON. `snapshot_every`: keep
    the state every N events; None: never. `snapshot_version`: raise it when kept states no longer fit the fields.
    """

    _definition: ClassVar[AggregateDefinition | None] = None

    def __init_subclass__(
        cls,
        *,
        topic: str | None = None,
        events: EventClasses | None = None,
        snapshot_every: int | msgspec.UnsetType | None = msgspec.UNSET,
        snapshot_version: int | msgspec.UnsetType = msgspec.UNSET,
        **others: Any,
    ) -> None:
        own = dict(vars(cls))  # other bases may add to it
        super().__init_subclass__(**others)
        above = cls._definition
        if topic is None and above is None:
            raise InvalidInput(f'{cls.__name__} has no topic: class {cls.__name__}(everlog.Aggregate, topic="…")')
        types = None if events is None else EventTypes.of(events)
        if above is not None:
            topic, types = topic or above.topic, types or above.types
        assert topic is not None
        every, version = snapshot_every, snapshot_version
        if every is msgspec.UNSET:
            every = SNAPSHOT_EVERY if above is None else above.snapshot_every
        if version is msgspec.UNSET:
            version = 1 if above is None else above.snapshot_version
        for name, value in (("every", 1 if every is None else every), ("version", version)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InvalidInput(f"{cls.__name__}: snapshot_{name} is a whole number from 1, not {value!r}")
        cls._definition = AggregateDefinition(check_topic(topic), types, every, version)
        dataclasses.dataclass(kw_only=True)(cls)
        _check_fields(cls, own)

    @property
    def id(self) -> str:
        """The id of its journal."""
        return place_of(self).id

    @property
    def version(self) -> int:
        """The seqNr of the last event in this state that is stored; 0 if there is none. For `expected=`."""
        return place_of(self).version

    @property
    def token(self) -> Token | None:
        """Where the update that returned it wrote, for `after=`; None if it wrote nothing."""
        return place_of(self).token

    @property
    def emitted(self) -> tuple[Any, ...]:
        """What was emitted and is not stored yet."""
        return tuple(event.payload for event in place_of(self).emitted)

    def apply(self, event: Any) -> None:
        """Change the state as the event says. It happened: there is nothing to refuse here."""
        raise NotImplementedError

    def apply_unknown(self, event: EventRecord) -> None:
        """An event that is none of `events`: an error, because decisions must not be made from half a state."""
        raise UnknownEventType(type(self).__name__, self.id, event.type, event.type_version, event.seq_nr)

    def emit(self, event: Any, *, tags: Iterable[str] = ()) -> None:
        """Let an event happen: it is applied at once, and stored when the function of the update is done."""
        if isinstance(event, Event):
            raise InvalidInput("an aggregate emits the payload itself, not an Event: write emit(…, tags=…)")
        types = definition_of(type(self)).types
        new = Event(event, tags=tags)
        if types is not None:
            types.event(new)
        self.apply(event)
        place_of(self).emitted.append(new)


A = TypeVar("A", bound=Aggregate)
_OWN = frozenset(name for name in vars(Aggregate) if not name.startswith("__"))
# Of these, what a class may have of its own.
_OVERRIDDEN = frozenset({"apply", "apply_unknown", "emit", "_definition"})


def place_of(aggregate: Aggregate) -> AggregatePlace:
    """Where an aggregate stands; it is no part of the state, and so no field."""
    found: AggregatePlace = vars(aggregate).setdefault("_place", AggregatePlace())
    return found


def _check_fields(cls: type[Aggregate], own: Mapping[str, Any]) -> None:
    if cls.apply is Aggregate.apply:
        raise InvalidInput(f"{cls.__name__} has no apply(self, event): how do events change its state?")
    names = field_names(cls)
    for name in (*_OWN, "_place"):
        if name in names or (
            name not in _OVERRIDDEN and getattr(cls, name, None) is not getattr(Aggregate, name, None)
        ):
            raise InvalidInput(f"{cls.__name__}: {name!r} is a name of aggregates themselves: choose another")
    for field in dataclasses.fields(cls):  # type: ignore[arg-type]
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise InvalidInput(f"{cls.__name__}: {field.name!r} needs a default, the state before the first event")
    annotated = {name for base in cls.__mro__ for name in inspect.get_annotations(base)}
    for name, value in own.items():
        is_value = not (isinstance(value, type) or hasattr(value, "__get__"))
        if is_value and name not in annotated and name not in _OWN and not name.startswith("__"):
            raise InvalidInput(
                f"{cls.__name__}: {name!r} has no annotation, so no snapshot would keep it: annotate it, as a ClassVar "
                "if it is no part of the state"
            )


def definition_of(kind: type[Aggregate]) -> AggregateDefinition:
    """What a class says about itself, or an error if it is none of aggregates."""
    found = kind._definition if isinstance(kind, type) and issubclass(kind, Aggregate) else None
    if found is None:
        raise InvalidInput(f"an aggregate is a subclass of everlog.Aggregate, not {kind!r}")
    return found


def state_payload(aggregate: Aggregate) -> Json:
    """The state as a snapshot keeps it: the fields; InvalidInput if another state would come back."""
    names = field_names(type(aggregate))
    beside = vars(aggregate).keys() - {*names, "_place"}
    if beside:
        raise InvalidInput(f"{min(beside)!r} is no field, and would be lost: declare it as one, with its type")
    text = encode_payload(Json({name: getattr(aggregate, name) for name in names}))[1]
    assert isinstance(text, str)
    changed = changed_field(aggregate, msgspec.json.decode(text, type=type(aggregate), dec_hook=decode_model))
    if changed is not None:
        raise InvalidInput(f"{changed!r} would come back as something else: declare the type that it really has")
    return Json(msgspec.Raw(text.encode()))


def state_of(kind: type[A], snapshot: Snapshot) -> A | None:
    """The state that a snapshot keeps; None if it is of another version. ValueError if its fields are others."""
    metadata, version = snapshot.metadata, definition_of(kind).snapshot_version
    if not isinstance(metadata, dict) or metadata.get(SNAPSHOT_VERSION) != version or snapshot.payload_type != "json":
        return None
    names, kept = {*field_names(kind)}, _members(snapshot.data or "null").keys()
    if names - kept:
        raise ValueError(f"it lacks {min(names - kept)!r}")
    if kept - names:
        raise ValueError(f"{min(kept - names)!r} is no field of the class")
    return msgspec.json.decode(snapshot.data or "null", type=kind, dec_hook=decode_model)
