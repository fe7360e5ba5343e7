"""Making the library's clients, and stopping their threads."""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import threading
from collections.abc import Callable
from typing import TypeVar

from confluent_kafka import KafkaError, KafkaException

from everlog.errors import InvalidConfig
from everlog.log.kafka.errors import kafka_error
from everlog.log.kafka.settings import ClientSettings

logger = logging.getLogger("everlog.log.kafka")

Client = TypeVar("Client")
Found = TypeVar("Found")


def make_client(kind: Callable[[ClientSettings], Client], settings: ClientSettings) -> Client:
    """A client; InvalidConfig if the library does not take the settings."""
    try:
        return kind({**settings, "logger": logger})
    except (KafkaException, ValueError, TypeError) as error:
        raise InvalidConfig(
            f"Kafka's client does not take the settings: {kafka_error(error).str()}: check [kafka] and its conf"
        ) from error


class ClientWatch:
    """Keeps what a client says about its connections."""

    def __init__(self) -> None:
        self.last: KafkaError | None = None
        self.denied: KafkaError | None = None

    def take(self, error: KafkaError, *, denied: bool) -> None:
        """An error that concerns no single request; `denied` if it will not go away by itself."""
        self.last = error
        if denied:
            self.denied = error


async def answer_of(future: concurrent.futures.Future[Found]) -> Found:
    """What the administrator's client answers. Whoever gives up leaves the future alone: the library will fill it."""
    waiting = asyncio.wrap_future(future)
    waiting.add_done_callback(lambda done: done.cancelled() or done.exception())
    return await asyncio.shield(waiting)


async def join(thread: threading.Thread) -> None:
    """Wait for a thread that was told to stop."""
    await asyncio.to_thread(thread.join)
