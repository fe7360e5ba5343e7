"""How a cluster is reached: its contact points, credentials and TLS, and the driver's session at the end of them."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import socket
import ssl
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import acsylla

from everlog.cassandra.errors import DriverError, explain
from everlog.config import CASSANDRA_PASSWORD_VARIABLE, CassandraConfig
from everlog.errors import InvalidConfig, Unreachable

log = logging.getLogger("everlog.cassandra")

DEFAULT_PORT = 9042
MAX_PARKED = 64

_parked: deque[int] = deque()


def contact_points(points: Sequence[str]) -> tuple[list[str], int]:
    """Hosts and the one port of `host`, `host:port`, `[address]:port`.

    >>> contact_points(["a:9043", "b:9043"])
    (['a', 'b'], 9043)
    """
    hosts, ports = [], set()
    for point in points:
        host, separator, port = point.strip().rpartition(":")
        if not separator or (":" in host and not host.startswith("[")) or port.endswith("]"):
            host, port = point.strip(), str(DEFAULT_PORT)
        if not host or not port.isdecimal() or not 0 < int(port) < 65536:
            raise InvalidConfig(f"[cassandra] contact_points: {point!r} is not a host or host:port")
        hosts.append(host.strip("[]"))
        ports.add(int(port))
    if not hosts:
        raise InvalidConfig("[cassandra] contact_points is empty: name at least one node")
    if len(ports) > 1:
        raise InvalidConfig(
            f"[cassandra] contact_points name the ports {sorted(ports)}: all nodes of a cluster listen on one port"
        )
    return hosts, ports.pop()


def password_of(config: CassandraConfig) -> str | None:
    """The password of the configuration, or else of the environment."""
    return config.password if config.password is not None else os.environ.get(CASSANDRA_PASSWORD_VARIABLE)


class DriverConnection(NamedTuple):
    """The driver's session, and the object that made it."""

    cluster: Any
    session: Any

    async def close(self) -> None:
        """Let requests finish, then let go of the connections."""
        try:
            await self.session.close()
        finally:
            _close_sockets(self.cluster)


async def open_connection(config: CassandraConfig) -> DriverConnection:
    """Connect, or say why not."""
    hosts, port = contact_points(config.contact_points)
    addresses = await _resolve(hosts, port)
    settings: dict[str, Any] = {}
    if config.username is not None:
        settings |= {"username": config.username, "password": password_of(config) or ""}
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
        # Routing needs only each keyspace's replication; a large cluster may have thousands of tables.
        use_schema=False,
        # Back within seconds after an outage: callers retry in between.
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
        return DriverConnection(cluster, await cluster.create_session())
    except BaseException as error:
        _close_sockets(cluster)
        if isinstance(error, DriverError):
            raise explain(error, config) from error
        raise


async def _resolve(hosts: Sequence[str], port: int) -> list[str]:
    """All addresses of all names; names that do not resolve do no harm as long as one does."""
    loop = asyncio.get_running_loop()
    found: dict[str, None] = {}
    unknown = []
    for host in hosts:
        try:
            for *_, address in await loop.getaddrinfo(host, port, proto=6):
                found[str(address[0])] = None
        except OSError as error:
            unknown.append(f"{host} ({error.strerror})")
    if not found:
        raise Unreachable(f"no name in [cassandra] contact_points resolves: {', '.join(unknown)}: correct them")
    if unknown:
        log.warning("names in [cassandra] contact_points that do not resolve: %s", ", ".join(unknown))
    return list(found)


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


def _close_sockets(cluster: Any) -> None:
    """Close the pairs of sockets by which the driver's threads wake the event loop; the driver leaves them open.

    A thread may be about to write its last byte. So the number of its end is not given back at once: another file
    would get it, and then that byte. It leads nowhere for a while instead.
    """
    loop = asyncio.get_running_loop()
    for owner in (cluster, cluster.get_logger()):
        for found in gc.get_referents(owner):
            if isinstance(found, socket.socket) and found.fileno() >= 0:
                loop.remove_reader(found)
                _park(found.detach())


def _park(number: int) -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, number)
    os.close(nowhere)
    _parked.append(number)
    if len(_parked) > MAX_PARKED:
        os.close(_parked.popleft())
