"""Where a cluster is reached: names and addresses of the configuration."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from everlog.errors import InvalidConfig, Unreachable

log = logging.getLogger("everlog.cassandra")

DEFAULT_PORT = 9042


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


async def resolve(hosts: Sequence[str], port: int) -> list[str]:
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
