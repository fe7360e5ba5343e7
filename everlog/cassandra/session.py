"""The one module that talks to the driver: connecting, prepared statements, retries, errors with a remedy.

All statements of Everlog may be repeated: their write timestamps come from the log, or they are conditional and are
read again. So a time-out is simply tried again, a bounded number of times.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from everlog.cassandra.contact_points import contact_points, resolve
from everlog.cassandra.sockets import close_sockets
from everlog.config import CASSANDRA_PASSWORD_VARIABLE, CassandraConfig
from everlog.errors import (
    AccessDenied,
    EverlogError,
    InvalidConfig,
    MissingExtra,
    Refused,
    StorageFailed,
    Unreachable,
)
from everlog.runtime.trace import Trace

try:
    import acsylla
    from acsylla import errors as driver
except ImportError as error:
    raise MissingExtra("cassandra") from error

log = logging.getLogger("everlog.cassandra")

RETRY_FIRST = 0.05
RETRY_MOST = 2.0
RECONNECT_FIRST = 0.5
RECONNECT_MOST = 30.0
MAX_PREPARED = 1000
KNOWN_SECONDS = 5.0
KNOWN_RETRY = 0.1

CassandraRow: TypeAlias = tuple[Any, ...]
CassandraRequest: TypeAlias = Any
"""A bound statement, a batch of them, or the text of one that is to be prepared."""

T = TypeVar("T")

# A time-out says nothing about the outcome, and the rest may be over in a moment: all of them are tried again.
_TRANSIENT = (
    driver.CassErrorServerWriteTimeout,
    driver.CassErrorServerReadTimeout,
    driver.CassErrorServerUnavailable,
    driver.CassErrorServerOverloaded,
    driver.CassErrorServerIsBootstrapping,
    driver.CassErrorServerReadFailure,
    driver.CassErrorServerWriteFailure,
    driver.CassErrorServerServerError,
    driver.CassErrorServerUnprepared,
    driver.CassErrorLibRequestTimedOut,
    driver.CassErrorLibRequestQueueFull,
    driver.CassErrorLibNoHostsAvailable,
    driver.CassErrorLibNoStreams,
    driver.CassErrorLibWriteError,
    driver.CassErrorLibUnableToConnect,
    driver.CassErrorLibUnexpectedResponse,
)
_REFUSALS = (
    driver.CassErrorServerInvalidQuery,
    driver.CassErrorServerSyntaxError,
    driver.CassErrorServerFunctionFailure,
    driver.CassErrorLibMessageEncode,
    driver.CassErrorLibInvalidValueType,
)


class Session:
    """A pool of connections, shared by everything that uses the same cluster."""

    def __init__(self, cluster: Any, raw: Any, config: CassandraConfig, trace: Trace | None = None) -> None:
        self.config = config
        self._cluster = cluster
        self._raw = raw
        self._trace = trace
        self._turns = asyncio.Semaphore(config.max_requests)
        self._prepared: dict[str, Any] = {}
        self._preparing = asyncio.Lock()

    async def prepare(self, cql: str) -> Any:
        """The prepared statement of this text; asked of the server once."""
        found = self._prepared.get(cql)
        return found if found is not None else await once_known(partial(self._prepare, cql))

    async def _prepare(self, cql: str) -> Any:
        async with self._preparing:
            found = self._prepared.get(cql)
            if found is None:
                assert len(self._prepared) < MAX_PREPARED, "statements are a fixed set; values are bound"
                found = await self.execute(cql, f"PREPARE {cql}")
                self._prepared[cql] = found
        return found

    async def fetch(self, cql: str, *values: Any, serial: bool = False) -> list[CassandraRow]:
        """All rows of a query. `serial` settles what became of a conditional write that timed out."""
        statement = (await self.prepare(cql)).bind(list(values), **({"consistency": _SERIAL} if serial else {}))
        return rows_of(await self.execute(statement, cql))

    async def page(
        self, cql: str, values: Sequence[Any], size: int, state: bytes | None = None
    ) -> tuple[list[CassandraRow], bytes | None]:
        """One page of at most `size` rows, and where the next one starts; None if there is no more."""
        statement = (await self.prepare(cql)).bind(list(values), page_size=size, page_state=state)
        result = await self.execute(statement, cql)
        return rows_of(result), result.page_state() if result.has_more_pages() else None

    async def pages(self, cql: str, *values: Any, page: int) -> AsyncIterator[list[CassandraRow]]:
        """The rows of a query, at most `page` at a time."""
        state: bytes | None = None
        while True:
            rows, state = await self.page(cql, values, page, state)
            if rows:
                yield rows
            if state is None:
                return

    async def write(self, cql: str, *values: Any) -> None:
        """One statement whose repetition does no harm."""
        await self.execute((await self.prepare(cql)).bind(list(values)), cql)

    async def write_if(self, cql: str, *values: Any) -> bool | None:
        """A conditional write: whether it was applied; None if that is unknown, then read again with `serial`."""
        return await self.attempt_if((await self.prepare(cql)).bind(list(values)), cql)

    async def attempt_if(self, request: CassandraRequest, cql: str) -> bool | None:
        """The same for a bound statement, or a batch of one partition with a condition in it."""
        try:
            async with self._turns:
                result = await self._once(request, cql)
        except driver.CassException as error:
            if isinstance(error, _TRANSIENT):
                log.info("a conditional write has no known outcome (%s): it is read again", error)
                return None
            raise explain(error, self.config, cql) from error
        return bool(rows_of(result)[0][0])

    async def batch_if(self, statements: Sequence[tuple[str, Sequence[Any]]]) -> bool | None:
        """A conditional batch on one partition: applied as a whole or not at all; None if that is unknown."""
        bound = [(await self.prepare(cql)).bind(list(values)) for cql, values in statements]
        return await self.attempt_if(make_batch(bound), statements[0][0])

    async def change_schema(self, cql: str) -> None:
        """A statement that changes tables: not prepared, and given time."""
        request = acsylla.create_statement(cql, timeout=max(30.0, self.config.request_timeout_s))
        await once_known(partial(self.execute, request, cql))

    async def execute(self, request: CassandraRequest, cql: str) -> Any:
        """Run a bound statement or a batch, again and again if need be."""
        async with self._turns:
            return await self.attempt(request, cql)

    async def attempt(self, request: CassandraRequest, cql: str) -> Any:
        """The same for whoever holds a turn already."""
        try:
            return await self._once(request, cql)
        except driver.CassException as error:
            return await self._again(request, cql, error)

    async def _again(self, request: CassandraRequest, cql: str, error: Exception) -> Any:
        """What did not work the first time: once more, if that can help."""
        for attempt in range(1, self.config.retries + 1):
            if not isinstance(error, _TRANSIENT):
                break
            log.info("attempt %d of %d: %s", attempt, self.config.retries + 1, error)
            await asyncio.sleep(backoff(attempt, RETRY_FIRST, RETRY_MOST))
            try:
                return await self._once(request, cql)
            except driver.CassException as found:
                error = found
        raise explain(error, self.config, cql) from error

    def _once(self, request: CassandraRequest, cql: str) -> Awaitable[Any]:
        if isinstance(request, str):
            run = self._raw.create_prepared(request)
        elif isinstance(request, _Batch):
            run = self._raw.execute_batch(request)
        else:
            run = self._raw.execute(request, native_types=True)
        return run if self._trace is None else self._traced(run, cql, self._trace)

    async def _traced(self, run: Awaitable[Any], cql: str, trace: Trace) -> Any:
        started = time.perf_counter()
        try:
            return await run
        finally:
            trace(" ".join(cql.split()), time.perf_counter() - started)

    async def run_all(self, requests: Iterable[tuple[str, CassandraRequest, str]], count: int) -> dict[str, Exception]:
        """Run (owner, request, text), many at a time; the owners whose request was refused for good, with the reason.

        `requests` may be lazy: each is made when its turn comes. `count` is about how many there are.
        """
        source = iter(requests)
        failed: dict[str, Exception] = {}

        async def work() -> None:
            async with self._turns:
                for owner, request, cql in source:
                    try:  # as `attempt` does, without one more coroutine: this is the pipeline's innermost loop
                        await self._once(request, cql)
                    except driver.CassException as error:
                        try:
                            await self._again(request, cql, error)
                        except Refused as refused:
                            failed.setdefault(owner, refused)

        await self.together([work() for _ in range(min(count, self.config.max_requests))])
        return failed

    async def share(self, items: Iterable[T], run: Callable[[T], Awaitable[None]], count: int) -> None:
        """Run all items, as many at a time as there are turns. A worker keeps its turn: `run` must not ask for one."""
        source = iter(items)

        async def work() -> None:
            async with self._turns:
                for item in source:
                    await run(item)

        await self.together([work() for _ in range(min(count, self.config.max_requests))])

    async def together(self, work: Sequence[Awaitable[None]]) -> None:
        """Run all; the first error ends the others and is raised as it is."""
        tasks = [asyncio.ensure_future(one) for one in work]
        try:
            for task in asyncio.as_completed(tasks):
                await task
        finally:
            for one in tasks:
                one.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def close(self) -> None:
        """Let requests finish, then let go of the connections."""
        try:
            await self._raw.close()
        finally:
            close_sockets(self._cluster)


async def once_known(ask: Callable[[], Awaitable[T]]) -> T:
    """What `ask` answers. A node lists a keyspace or a table, which somebody makes, a moment before it knows it."""
    deadline = time.monotonic() + KNOWN_SECONDS
    while True:
        try:
            return await ask()
        except Refused as error:
            if "does not exist" not in str(error) or time.monotonic() > deadline:
                raise
            log.info("asked again, somebody may just be making it: %s", error)
        await asyncio.sleep(KNOWN_RETRY)


def rows_of(result: Any) -> list[CassandraRow]:
    """A result's rows as tuples."""
    return [row.as_tuple() for row in result]


def make_batch(statements: Iterable[Any]) -> CassandraRequest:
    """An unlogged batch: one mutation, if all statements are of one partition."""
    batch = acsylla.create_batch_unlogged()
    for statement in statements:
        batch.add_statement(statement)
    return batch


async def connect(config: CassandraConfig, trace: Trace | None = None) -> Session:
    """Connect, or say why not; with `reconnect_on_init`, keep trying as long as no node answers."""
    attempt = 0
    while True:
        try:
            return await _connect(config, trace)
        except Unreachable as error:
            if not config.reconnect_on_init:
                raise
            attempt += 1
            delay = backoff(attempt, RECONNECT_FIRST, RECONNECT_MOST)
            log.warning("%s; next attempt in %.1f s", error, delay)
            await asyncio.sleep(delay)


async def _connect(config: CassandraConfig, trace: Trace | None) -> Session:
    hosts, port = contact_points(config.contact_points)
    addresses = await resolve(hosts, port)
    password = config.password if config.password is not None else os.environ.get(CASSANDRA_PASSWORD_VARIABLE)
    settings: dict[str, Any] = {}
    if config.username is not None:
        settings |= {"username": config.username, "password": password or ""}
    if config.local_datacenter is not None:
        settings["load_balance_dc_aware"] = config.local_datacenter
    if config.tls:
        settings |= _tls(config)
    cluster = acsylla.create_cluster(
        addresses,
        port=port,
        connect_timeout=config.connect_timeout_s,
        request_timeout=config.request_timeout_s,
        consistency=config.consistency,
        serial_consistency="SERIAL",
        # Which keyspace is replicated how is all that routing needs; the tables of a large cluster may be thousands.
        use_schema=False,
        # Back within seconds after an outage: whoever waits retries in between.
        exponential_reconnect_base_delay_ms=200,
        exponential_reconnect_max_delay_ms=5000,
        # Retries are ours, so that they are counted in one place.
        retry_policy="fallthrough",
        application_name="everlog",
        # The driver's lines come from its own threads and go to whichever cluster was made last, closed or not. Ours
        # say what matters.
        log_level="disabled",
        **settings,
    )
    try:
        return Session(cluster, await cluster.create_session(), config, trace)
    except driver.CassException as error:
        close_sockets(cluster)
        raise explain(error, config) from error


def _tls(config: CassandraConfig) -> dict[str, Any]:
    if config.ca_file is None:
        raise InvalidConfig("[cassandra] tls = true needs ca_file, the certificate that signed the nodes' own")
    if (config.cert_file is None) != (config.key_file is None):
        raise InvalidConfig("[cassandra] cert_file and key_file belong together: set both or neither")
    try:
        # The driver would say only that something is wrong with some file.
        context = ssl.create_default_context(cadata=Path(config.ca_file).read_text())
        if config.cert_file is not None:
            context.load_cert_chain(config.cert_file, config.key_file)
    except (OSError, ValueError) as error:
        raise InvalidConfig(
            f"[cassandra] ca_file, cert_file or key_file cannot be used: {error}: they must be PEM files"
        ) from error
    return {
        "ssl_enabled": True,
        "ssl_trusted_cert": Path(config.ca_file).read_text(),
        "ssl_cert": None if config.cert_file is None else Path(config.cert_file).read_text(),
        "ssl_private_key": None if config.key_file is None else Path(config.key_file).read_text(),
        "ssl_verify_flags": acsylla.SSLVerifyFlags.PEER_CERT,
    }


def backoff(attempt: int, first: float, most: float) -> float:
    """How long to wait before the next attempt: twice as long each time, with jitter, so that not all come at once."""
    return min(most, first * 2.0 ** min(attempt - 1, 30)) * random.uniform(0.5, 1.0)


def explain(error: Exception, config: CassandraConfig, cql: str | None = None) -> EverlogError:
    """The error of ours that says what this one means, and what to do."""
    points, text = ", ".join(config.contact_points), str(error) or type(error).__name__
    if isinstance(error, driver.CassErrorServerBadCredentials):
        return AccessDenied(
            f"Cassandra at {points} does not accept these credentials ({text}): correct [cassandra] username, and "
            f"password or the environment variable {CASSANDRA_PASSWORD_VARIABLE}"
        )
    if isinstance(error, driver.CassErrorServerUnauthorized):
        return AccessDenied(
            f"Cassandra refuses: {text}: grant the role {config.username or '(none)'} that right on the keyspace "
            f"{config.keyspace} (GRANT … ON KEYSPACE {config.keyspace} TO …)"
        )
    if isinstance(error, driver.CassErrorSourceSsl):
        return StorageFailed(
            f"no TLS connection to Cassandra at {points} ({text}): correct [cassandra] ca_file, cert_file and key_file"
        )
    if isinstance(error, _REFUSALS):
        statement = " ".join((cql or "").split())[:100]
        return Refused(f"Cassandra refuses a statement for good: {text} ({statement}…)")
    if isinstance(error, driver.CassErrorLibHostResolution):
        return Unreachable(f"a name in [cassandra] contact_points ({points}) does not resolve: correct it")
    if isinstance(error, _TRANSIENT):
        hint = f", local_datacenter ({config.local_datacenter})" if config.local_datacenter else ""
        return Unreachable(
            f"Cassandra at {points} does not answer as it should ({text}): start the nodes or wait for them, or "
            f"correct [cassandra] contact_points{hint}; what was being done is safe to repeat"
        )
    return StorageFailed(f"Cassandra at {points}: {text}")


_Batch = type(acsylla.create_batch_unlogged())
_SERIAL = acsylla.Consistency.SERIAL
