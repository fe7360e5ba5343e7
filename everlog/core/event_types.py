"""Typed events: a class carries the name and the version of its event; a set of classes reads events by them.

    @everlog.event("order-placed", version=2)
    @dataclass
    class OrderPlaced: ...

Nothing is registered anywhere: the class itself knows its name, and the steps from its older versions. A journal, a tag
or a source gets the classes that it is about.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar, Union, get_args, get_origin

import msgspec

from everlog.core.events import DECLARED, Event, EventRecord, EventType, Json, check_type, encode_payload
from everlog.core.round_trip import changed_field, decode_model
from everlog.errors import EventMismatch, InvalidEventType

C = TypeVar("C", bound=type)
F = TypeVar("F", bound=Callable[[Any], Any])

EventClasses = type | types.UnionType | Sequence[type]
"""Classes of events as callers give them: one, a union, or a sequence."""

# The steps to a class, in the class itself.
_STEPS = "__everlog_upcasts__"
_NEW_VERSION = "raise the version of the class, and add a step from this one with @everlog.upcast"
_OTHER_STEPS = "mend the steps of @everlog.upcast from this version"
_Read = Callable[[str | bytes], Any]
_decode = msgspec.json.Decoder().decode


class UpcastStep(NamedTuple):
    """A step to a newer version. From an older class, or without one from the plain JSON of the version before."""

    name: EventType
    source: type | None
    function: Callable[[Any], Any]

    def __call__(self, data: str | bytes) -> str | bytes:
        found = encode_payload(Json(self.function((_decode if self.source is None else _decoder(self.source))(data))))
        assert found[1] is not None
        return found[1]


class Upcast(NamedTuple):
    """The way from an older version to the newest: JSON in, JSON out. It is made of functions, and can be pickled."""

    newest: EventType
    steps: tuple[UpcastStep, ...]

    def __call__(self, data: str | bytes) -> str | bytes:
        for step in self.steps:
            data = step(data)
        return data


class EventReader(NamedTuple):
    """How the JSON of one name and version becomes an instance. It can be pickled, and so can what holds it."""

    target: type
    upcast: Upcast | None = None

    def __call__(self, data: str | bytes) -> Any:
        return _decoder(self.target)(data if self.upcast is None else self.upcast(data))


def event(name: str, *, version: int = 1) -> Callable[[C], C]:
    """Declare a dataclass, a msgspec Struct or a pydantic model as an event, under a name that never changes.

    Raise the version when older events no longer fit the class, and say with `upcast` how they become new ones.

    >>> @event("order-paid", version=2)
    ... @dataclasses.dataclass
    ... class OrderPaid:
    ...     cents: int
    """
    found = check_type(name, version)

    def declare(cls: C) -> C:
        if not isinstance(cls, type):
            raise InvalidEventType(f"@everlog.event stands above a class, not above {cls!r}")
        setattr(cls, DECLARED, found)
        return cls

    return declare


def upcast(target: type, source: int | type) -> Callable[[F], F]:
    """Declare the step from an older version of an event to the class that it is now.

    `source` is a version: the function gets its JSON and returns that of the next version. Or it is the older class:
    the function gets an instance, and returns one of `target`. Steps run one after the other, on every read.

    >>> @event("order-paid", version=2)
    ... @dataclasses.dataclass
    ... class OrderPaid:
    ...     cents: int
    >>> @upcast(OrderPaid, 1)
    ... def to_cents(old):
    ...     return {"cents": 100 * old["euros"]}
    """
    name = type_of(target)
    if isinstance(source, type):
        step, older = type_of(source), source
        if step == name:
            raise InvalidEventType(f"{source.__name__} and {target.__name__} are both {_show(name)}: raise the version")
        if step.name == name.name and step.version > name.version:
            raise InvalidEventType(
                f"{target.__name__} is version {name.version}: a step from version {step.version} does not lead to it: "
                f"write @everlog.upcast({source.__name__}, {target.__name__})"
            )
    else:
        step, older = check_type(name.name, source), None
        if step.version >= name.version:
            raise InvalidEventType(
                f"{target.__name__} is version {name.version}: a step from version {step.version} does not lead to it"
            )

    def declare(function: F) -> F:
        if not callable(function):
            raise InvalidEventType(f"@everlog.upcast stands above a function, not above {function!r}")
        steps: dict[EventType, UpcastStep] = target.__dict__.get(_STEPS, {})
        if step in steps:
            raise InvalidEventType(f"there is a step from {_show(step)} to {target.__name__} already: keep one of them")
        setattr(target, _STEPS, {**steps, step: UpcastStep(step, older, function)})
        return function

    return declare


def type_of(cls: type) -> EventType:
    """The name and the version that a class carries; a subclass does not inherit them."""
    found = cls.__dict__.get(DECLARED) if isinstance(cls, type) else None
    if found is None:
        shown = cls.__name__ if isinstance(cls, type) else repr(cls)
        raise InvalidEventType(f'{shown} is not declared as an event: put @everlog.event("a-name") above the class')
    assert isinstance(found, EventType)
    return found


class TypedRecord(EventRecord, frozen=True):
    """A stored event whose payload is an instance of its class. `type_version` is the stored one."""

    reader: EventReader | None = None

    @property
    def payload(self) -> Any:
        assert self.reader is not None
        if self.payload_type != "json":
            kind = self.payload_type
            raise self._mismatch("it has no payload" if kind is None else f"its payload is {kind}, not JSON")
        try:
            return self.reader(self.data or "null")
        except Exception as error:  # the user's own code may raise anything
            # Many errors of Python, such as KeyError, say little without their name.
            reason = str(error) if isinstance(error, msgspec.ValidationError) else f"{type(error).__name__}: {error}"
            raise self._mismatch(reason, _NEW_VERSION if self.reader.upcast is None else _OTHER_STEPS) from error

    def _mismatch(self, reason: str, remedy: str | None = None) -> EventMismatch:
        return EventMismatch(self.type or "", self.type_version or 0, self.seq_nr, reason, remedy=remedy)


class EventTypes:
    """The classes of a journal, a tag or a source: which event is an instance of which.

    An event of another name, or of a version to which no step belongs, stays as it is: plain JSON.
    """

    def __init__(self, classes: Sequence[type]) -> None:
        self.classes = tuple(classes)
        self._readers: dict[EventType, EventReader] = {}
        declared: dict[EventType, type] = {}
        for cls in self.classes:
            name = type_of(cls)
            if name in declared:
                raise InvalidEventType(
                    f"{declared[name].__name__} and {cls.__name__} are both {_show(name)}: rename one of them"
                )
            declared[name] = cls
            _decoder(cls)  # which says what is wrong with the class
            self._readers[name] = EventReader(cls)
        self.upcasts: dict[EventType, Upcast] = {}
        for cls in self.classes:
            for name, upcast in _upcasts(cls).items():
                if name not in declared:  # a version that has a class here is read as that
                    self.upcasts[name] = upcast
                    self._readers[name] = EventReader(cls, upcast)

    @classmethod
    def of(cls, classes: EventClasses | EventTypes) -> EventTypes:
        """From what callers give: one class, `A | B`, or a sequence."""
        if isinstance(classes, EventTypes):
            return classes
        found = tuple(_each(classes))
        if not found:
            raise InvalidEventType("no classes of events are given: name at least one")
        return cls(found)

    def typed(self, record: EventRecord) -> EventRecord:
        """The event with a payload of its class, or as it is if its name and version are unknown here."""
        found = record.event_type
        reader = None if found is None else self._readers.get(found)
        if reader is None:
            return record
        return TypedRecord(*msgspec.structs.astuple(plain(record)), reader=reader)  # type: ignore[misc]

    def event(self, given: Any) -> Event:
        """An event to append, from an instance or an `Event` with one; it must be readable as its class again."""
        found = given if isinstance(given, Event) else Event(given)
        cls: type = type(found.payload)
        if cls not in self.classes:
            names = ", ".join(one.__name__ for one in self.classes)
            raise InvalidEventType(f"{cls.__name__} is not among the events declared here, which are: {names}")
        text = encode_payload(found.payload)[1]
        assert text is not None
        try:
            again = _decoder(cls)(text)
            changed = None if again == found.payload else changed_field(found.payload, again)
        except Exception as error:  # a validator of the user may raise anything
            raise InvalidEventType(f"this {cls.__name__} could not be read back: {error}") from error
        if changed is not None:
            raise InvalidEventType(
                f"{changed!r} would be read back as something else in this {cls.__name__}: declare the type that it "
                "really has"
            )
        return found


def plain(record: EventRecord) -> EventRecord:
    """The event as it is stored, without its class."""
    return EventRecord(*msgspec.structs.astuple(record)[:-1]) if isinstance(record, TypedRecord) else record


def _each(classes: Any) -> Iterator[type]:
    if isinstance(classes, types.UnionType) or get_origin(classes) is Union:
        yield from get_args(classes)
    elif isinstance(classes, Sequence) and not isinstance(classes, str):
        yield from classes
    else:
        yield classes


@lru_cache(maxsize=10_000)
def _decoder(cls: type) -> _Read:
    """From JSON to an instance. Pydantic is known by its methods: it need not be installed."""
    found: _Read | None = getattr(cls, "model_validate_json", None)
    if found is not None:
        return found
    if not (dataclasses.is_dataclass(cls) or issubclass(cls, msgspec.Struct)):
        raise InvalidEventType(f"{cls.__name__} is no dataclass, msgspec Struct or pydantic model: make it one")
    try:
        return msgspec.json.Decoder(cls, dec_hook=decode_model).decode
    except (TypeError, NameError) as error:
        raise InvalidEventType(f"{cls.__name__} has a field that JSON cannot hold: {error}") from error


def _upcasts(cls: type, above: tuple[type, ...] = ()) -> dict[EventType, Upcast]:
    """The ways from older versions to a class, which is itself on the way to those above."""
    if cls in above:
        raise InvalidEventType(f"the steps of {cls.__name__} lead back to itself: remove one of them")
    steps: dict[EventType, UpcastStep] = cls.__dict__.get(_STEPS, {})
    newest = type_of(cls)
    found = {newest: Upcast(newest, ())}
    for step in sorted(steps.values(), key=lambda step: -step.name.version):
        if step.source is not None:
            older = {step.name: Upcast(step.name, ()), **_upcasts(step.source, (*above, cls))}
            found |= {name: Upcast(newest, (*way.steps, step)) for name, way in older.items()}
            continue
        following = EventType(step.name.name, step.name.version + 1)
        if following not in found:
            raise InvalidEventType(
                f"{cls.__name__} has a step from version {step.name.version} to {following.version}, and none from "
                f"there: add @everlog.upcast({cls.__name__}, {following.version})"
            )
        found[step.name] = Upcast(newest, (step, *found[following].steps))
    del found[newest]
    return found


def _show(name: EventType) -> str:
    return f"{name.name!r} version {name.version}"
