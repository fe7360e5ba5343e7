"""The arguments of a job's function: what its signature declares, as the JSON object that is the job's data.

The rule: the parameter named `job`, or annotated as `Job`, gets the job. All others are arguments, by keyword, and need
a type. A function with no parameter but the job has no arguments: it reads `job.data` as it is. So has one whose only
parameter has no type, whatever its name.
"""

from __future__ import annotations

import contextlib
import inspect
import typing
from collections.abc import Callable, Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

import msgspec

from everlog.core.json_text import encode_json
from everlog.errors import InvalidInput
from everlog.queues.job import Job

_BY_KEYWORD = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_REMEDIES = {
    inspect.Parameter.VAR_POSITIONAL: "arguments have names: declare each as a parameter",
    inspect.Parameter.VAR_KEYWORD: "declare each argument as a parameter, with its type",
    inspect.Parameter.POSITIONAL_ONLY: "arguments are passed by name: leave out the '/'",
}
DATA = "data"


class PackedArguments(NamedTuple):
    """Arguments that were checked: the job's data, and all values as the function will see them."""

    data: Any
    values: dict[str, Any]


class JobArguments:
    """What a function takes besides the job. Types are resolved when they are first needed, at the latest."""

    def __init__(self, name: str, handler: Callable[..., object]) -> None:
        self._name = name
        self._handler = handler
        self._job, self._declared = self._parameters()
        self._types: dict[str, Any] | None = None
        self.raw = self._job is not None and not self._declared  # the job's data are whatever was put
        # A class that is defined further down, or in a module that is half imported, is there when the worker starts.
        with contextlib.suppress(NameError, AttributeError):
            self.check()

    def _parameters(self) -> tuple[inspect.Parameter | None, dict[str, inspect.Parameter]]:
        """The parameter that gets the job, and all others."""
        try:
            found = list(inspect.signature(self._handler).parameters.values())
        except (TypeError, ValueError):  # some functions that are written in C do not say
            return inspect.Parameter("job", inspect.Parameter.POSITIONAL_ONLY), {}
        if len(found) == 1 and found[0].annotation is found[0].empty and found[0].kind not in _VARIABLE:
            return found[0], {}
        jobs = [one for one in found if one.kind not in _VARIABLE and self._is_job(one)]
        others = [one for one in found if one not in jobs]
        if len(jobs) > 1:
            names = " and ".join(one.name for one in jobs)
            raise InvalidInput(f"{self._name}: {names} would both be the job: keep one of them")
        for one in [*jobs, *others] if others else []:
            if one.kind not in _BY_KEYWORD:
                raise InvalidInput(f"{self._name}: the parameter {one}: {_REMEDIES[one.kind]}")
        for one in others:
            if one.annotation is one.empty:
                raise InvalidInput(
                    f"{self._name}: the parameter {one.name!r} has no type: write {one.name}: str, or what it is"
                )
        return (jobs[0] if jobs else None), {one.name: one for one in others}

    def _is_job(self, parameter: inspect.Parameter) -> bool:
        if parameter.name == "job":
            return True
        try:
            found = self._resolved({parameter.name: parameter.annotation})[parameter.name]
        except Exception:  # a name that only type checkers import
            text = parameter.annotation
            return isinstance(text, str) and text.rpartition(".")[2] == Job.__name__
        return found is Job

    def check(self) -> dict[str, Any]:
        """The types of the arguments; NameError if one is not defined yet, InvalidInput if JSON cannot hold one."""
        if self._types is None:
            types = self._resolved({name: one.annotation for name, one in self._declared.items()})
            for name, kind in types.items():
                try:
                    info = msgspec.inspect.type_info(kind)
                except Exception as error:
                    raise InvalidInput(
                        f"{self._name}: the type of {name!r} cannot be read from JSON: {error}"
                    ) from error
                if isinstance(info, msgspec.inspect.CustomType) and not hasattr(kind, "model_validate"):
                    raise InvalidInput(
                        f"{self._name}: the argument {name!r} is a {kind.__name__}, which JSON cannot hold: make it a "
                        "dataclass, a msgspec Struct or a pydantic model"
                    )
            self._types = types
        return self._types

    def _resolved(self, annotations: Mapping[str, Any]) -> dict[str, Any]:
        """Annotations as types; `from __future__ import annotations` makes text of them."""
        names = getattr(_function_of(self._handler), "__globals__", {})
        holder = SimpleNamespace(__annotations__=dict(annotations))
        return typing.get_type_hints(holder, names, names, include_extras=True)

    def checked_types(self) -> dict[str, Any]:
        """The types of the arguments; InvalidInput if one is not known now, or JSON cannot hold one."""
        try:
            return self.check()
        except (NameError, AttributeError) as error:
            raise InvalidInput(f"{self._name}: a type of an argument is not known: {error}") from error

    @property
    def names(self) -> tuple[str, ...]:
        """What `put` takes."""
        return (DATA,) if self.raw else tuple(self._declared)

    def pack(self, given: Mapping[str, Any]) -> PackedArguments:
        """Arguments as a job's data. They are read back, as the worker will do, so that a wrong one is an error now."""
        self._check_names(given)
        if self.raw:
            data = given.get(DATA)
            return PackedArguments(data, {DATA: data})
        packed = {name: self._written(name, value) for name, value in given.items()}
        values = {name: self._read(name, value) for name, value in packed.items()}
        defaults = {name: one.default for name, one in self._declared.items() if name not in given}
        return PackedArguments(packed, {**values, **defaults})

    def bind(self, job: Job) -> Callable[[], Any]:
        """The call of the function for a job; InvalidInput if its data are not what the function takes."""
        if self.raw:
            assert self._job is not None
            if self._job.kind is inspect.Parameter.KEYWORD_ONLY:
                return partial(self._handler, **{self._job.name: job})
            return partial(self._handler, job)
        data = {} if job.data is None else job.data
        if not isinstance(data, dict):
            raise InvalidInput(f"{self._name} takes arguments by name: the data are {data!r:.100}, no JSON object")
        self._check_names(data)
        values = {name: self._read(name, value) for name, value in data.items()}
        if self._job is not None:
            values[self._job.name] = job
        return partial(self._handler, **values)

    def _check_names(self, given: Mapping[str, Any]) -> None:
        for name in given:
            if name not in self.names:
                known = ", ".join(self.names) or "no arguments"
                raise InvalidInput(f"{self._name} has no argument {name!r:.100}: it takes {known}")
        for name, one in self._declared.items():
            if one.default is one.empty and name not in given:
                raise InvalidInput(f"{self._name}: the argument {name!r} is missing")

    def _written(self, name: str, value: Any) -> Any:
        """A value as JSON has it."""
        try:
            plain = msgspec.to_builtins(value, str_keys=True, enc_hook=_dump_model)
        except Exception as error:  # a user's model may raise anything
            raise InvalidInput(f"{self._name}: the argument {name!r} cannot be written as JSON: {error}") from error
        return msgspec.json.decode(encode_json(f"argument {name!r} of {self._name}", plain))

    def _read(self, name: str, value: Any) -> Any:
        """A value as the function takes it."""
        kind = self.checked_types()[name]
        try:
            return msgspec.convert(value, kind, str_keys=True, dec_hook=_read_model)
        except Exception as error:  # a user's validator may raise anything
            raise InvalidInput(f"{self._name}: the argument {name!r} does not fit: {error}") from error


_VARIABLE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def _function_of(handler: Callable[..., object]) -> object:
    """The function that has the annotations: below decorators, and behind an object that can be called."""
    while isinstance(handler, partial):
        handler = handler.func
    found = inspect.unwrap(handler)
    return found if hasattr(found, "__globals__") else getattr(type(found), "__call__", found)  # noqa: B004


def _dump_model(value: Any) -> Any:
    """A pydantic model, which is known by its methods: it need not be installed. By the names that it reads."""
    dump = getattr(value, "model_dump", None)
    if dump is None or isinstance(value, type):
        raise TypeError(f"objects of type {type(value).__name__} cannot be written as JSON")
    if hasattr(value, "model_validate_json"):
        return dump(mode="json", by_alias=True, round_trip=True)
    return dump(mode="json")


def _read_model(kind: type, value: Any) -> Any:
    """As JSON where that is possible: a strict model takes the text of a date only from there."""
    read = getattr(kind, "model_validate_json", None)
    if read is not None:
        return read(msgspec.json.encode(value))
    read = getattr(kind, "model_validate", None)
    if read is None:
        raise TypeError(f"objects of type {kind.__name__} cannot be read from JSON")
    return read(value)
