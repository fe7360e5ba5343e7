"""Coroutines without an event loop: each `await Step(...)` is a place where others may run, or this one may die."""

from __future__ import annotations

from collections.abc import Coroutine, Generator
from typing import Any


class Step:
    """About to do what the label says; the next turn of the process does it."""

    __slots__ = ("label",)

    def __init__(self, label: str) -> None:
        self.label = label

    def __await__(self) -> Generator[str, None, None]:
        yield self.label


class Process:
    """A coroutine that is driven by hand. `pending` is the label of the step that comes next; `result` its value."""

    def __init__(self, name: str, coroutine: Coroutine[Any, Any, Any], trace: list[str]) -> None:
        self.name = name
        self.coroutine = coroutine
        self.trace = trace
        self.pending = "start"
        self.finished = False
        self.result: Any = None

    def step(self) -> str:
        """Do the pending step and run up to the next one; returns what was done."""
        assert not self.finished
        done = self.pending
        # An idle process may turn many times; once in a row tells it all.
        line = f"{self.name}: {done}"
        if done != "idle" or not self.trace or self.trace[-1] != line:
            self.trace.append(line)
        try:
            self.pending = self.coroutine.send(None)
        except StopIteration as end:
            self.finished, self.result = True, end.value
        except BaseException:
            self.finished = True
            raise
        return done

    def finish(self, turns: int = 2000) -> None:
        """Run alone until it ends or is idle."""
        for _ in range(turns):
            if self.finished or self.step() == "idle":
                return
        raise AssertionError(f"{self.name} does not come to an end")

    def until(self, label: str) -> None:
        """Run alone up to a step whose label starts so, without doing it."""
        while not self.pending.startswith(label):
            self.step()

    def kill(self) -> None:
        """Die here: the pending step is never done."""
        if not self.finished:
            self.trace.append(f"{self.name}: killed before {self.pending}")
            self.finished = True
        self.coroutine.close()


def run_alone(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """The result of a coroutine that nobody disturbs."""
    while True:
        try:
            coroutine.send(None)
        except StopIteration as end:
            return end.value
