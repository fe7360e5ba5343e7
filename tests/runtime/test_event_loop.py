"""The event loop of long programs."""

from __future__ import annotations

import asyncio
import signal
import threading

import pytest

from everlog.runtime.event_loop import run_for_long


async def work(number: int) -> int:
    await asyncio.sleep(0)
    return number


async def handle_signals() -> None:
    """As a program does that takes Ctrl-C for a wish to stop; it does not take its handlers back."""
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, lambda: None)


def test_signals_do_afterwards_what_they_did_before() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    assert run_for_long(work(7)) == 7
    run_for_long(handle_signals())
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
    with pytest.raises(ZeroDivisionError):
        run_for_long(fail())
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


async def fail() -> None:
    await handle_signals()
    raise ZeroDivisionError


def test_a_thread_has_a_loop_without_signals() -> None:
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(run_for_long(work(3))))
    thread.start()
    thread.join()
    assert found == [3]
