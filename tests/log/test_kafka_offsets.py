"""Who may share a request for a partition's end."""

from __future__ import annotations

import asyncio
import threading

from everlog.log.kafka.errors import LogPartition
from everlog.log.kafka.offsets import Lane
from everlog.log.port import Bounds

A, B = (LogPartition("t", 0), False), (LogPartition("t", 1), False)


class Leader:
    """Answers with how many requests came before, and only when it is told to."""

    def __init__(self) -> None:
        self.requests: list[list[object]] = []
        self.came = threading.Semaphore(0)
        self.go = threading.Semaphore(0)
        self.closed = False

    def ask(self, questions):
        self.requests.append(list(questions))
        answer = Bounds(0, len(self.requests))
        self.came.release()
        assert self.go.acquire(timeout=30)
        return dict.fromkeys(questions, answer)

    def close(self) -> None:
        self.closed = True


async def sent(leader: Leader) -> None:
    assert await asyncio.to_thread(leader.came.acquire, timeout=30)


async def test_those_who_ask_at_once_share_a_request():
    leader = Leader()
    lane = Lane(leader.ask, leader.close, asyncio.get_running_loop())
    asked = [lane.ask(A), lane.ask(A), lane.ask(B)]
    leader.go.release()
    assert await asyncio.gather(*asked) == [Bounds(0, 1)] * 3
    assert leader.requests == [[A, B]]
    await lane.close()
    assert leader.closed


async def test_nobody_joins_a_request_that_was_sent_already():
    """Its answer may be older than what was acknowledged before the call."""
    leader = Leader()
    lane = Lane(leader.ask, leader.close, asyncio.get_running_loop())
    early = lane.ask(A)
    await sent(leader)
    late = [lane.ask(A), lane.ask(A)]
    leader.go.release()
    assert await early == Bounds(0, 1)
    await sent(leader)
    assert not any(future.done() for future in late)
    leader.go.release()
    assert await asyncio.gather(*late) == [Bounds(0, 2)] * 2
    assert leader.requests == [[A], [A]]
    await lane.close()


async def test_one_who_gives_up_takes_nobody_along():
    leader = Leader()
    lane = Lane(leader.ask, leader.close, asyncio.get_running_loop())
    first, second = lane.ask(A), lane.ask(A)
    await sent(leader)
    first.cancel()
    leader.go.release()
    assert await second == Bounds(0, 1)
    await lane.close()


async def test_a_request_that_fails_answers_all():
    def fail(questions):
        raise ZeroDivisionError

    lane = Lane(fail, lambda: None, asyncio.get_running_loop())
    answer = await lane.ask(A)
    assert not isinstance(answer, Bounds)
    assert "ZeroDivisionError" in answer.str()
    assert not isinstance(await lane.ask(A), Bounds)
    await lane.close()
