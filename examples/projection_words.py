"""Counting words in three ways: with a state that is loaded first, one that is loaded on demand, and an actor.

python examples/projection_words.py [folder]
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import everlog
from everlog import ActorHandler, Handler, Projection, StatefulHandler

WORDS = ["a", "rose", "is", "a", "rose", "is", "a", "rose"]
DATABASE: dict[str, Counter[str]] = {name: Counter() for name in ("initial", "demand", "actor")}  # stands in for one


class Words:
    """A source of our own: numbered words."""

    async def source(self, read_offset: Any) -> AsyncIterator[tuple[int, str]]:
        done = await read_offset() or 0
        for number, word in enumerate(WORDS, 1):
            if number > done:
                yield number, word

    def extract_offset(self, envelope: tuple[int, str]) -> int:
        return envelope[0]


class InitialState(StatefulHandler):
    """All counts are loaded at the start, and again after a failure."""

    async def initial_state(self) -> Counter[str]:
        return DATABASE["initial"].copy()

    async def process(self, state: Counter[str], envelope: tuple[int, str]) -> Counter[str]:
        state[envelope[1]] += 1
        DATABASE["initial"][envelope[1]] = state[envelope[1]]
        return state


class OnDemand(Handler):
    """A count is loaded when its word first comes."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}

    async def process(self, envelope: tuple[int, str]) -> None:
        word = envelope[1]
        if word not in self._counts:
            self._counts[word] = DATABASE["demand"][word]
        self._counts[word] += 1
        DATABASE["demand"][word] = self._counts[word]


class Counting(ActorHandler):
    """A task of its own, whose state lives through restarts of the stream."""

    async def run(self, mailbox: everlog.Mailbox) -> None:
        counts = DATABASE["actor"].copy()
        async for message in mailbox:
            counts[message.envelope[1]] += 1
            DATABASE["actor"][message.envelope[1]] = counts[message.envelope[1]]
            message.done()


async def main(folder: str) -> None:
    handlers = {"initial": InitialState, "demand": OnDemand, "actor": Counting}
    projections = [Projection(name, source=Words(), handler=handler) for name, handler in handlers.items()]
    async with everlog.connect(folder) as log, log.projections.run(*projections) as runner:
        await runner.ended()
    for name, counts in DATABASE.items():
        print(f"{name}: {dict(counts.most_common())}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else temporary))
