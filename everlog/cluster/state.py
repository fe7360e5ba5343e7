"""What a cluster decided when it was made, and keeps: its size, its ports, its passwords."""

from __future__ import annotations

import base64
import os
import random
import secrets
import socket
from contextlib import ExitStack
from pathlib import Path

import msgspec

from everlog.errors import ClusterFailed, InvalidConfig, NewerVersion

MAX_NODES = 9
# Below what systems hand out to outgoing connections, so that a port is still free when its server comes back.
_PORTS = range(20_000, 32_000)


class Login(msgspec.Struct, frozen=True):
    """A user and the password."""

    user: str
    password: str


class Logins(msgspec.Struct, frozen=True):
    """Who may do what on a secure cluster."""

    admin: Login  # may do everything, on both
    application: Login  # what goes into everlog.toml
    keystore: str  # the password of the servers' key


class ServerState(msgspec.Struct, frozen=True, kw_only=True):
    """The file `cluster.json`."""

    nodes: int
    kafka_id: str
    kafka_ports: list[int]
    controller_ports: list[int]
    cassandra_port: int
    storage_port: int
    logins: Logins | None = None

    @property
    def secure(self) -> bool:
        return self.logins is not None


def new_state(nodes: int, *, secure: bool) -> ServerState:
    """Decide on free ports, and on passwords."""
    check_nodes(nodes)
    ports = _free_ports(2 * nodes + 2, nodes)
    return ServerState(
        nodes=nodes,
        kafka_id=_new_kafka_id(),
        kafka_ports=ports[:nodes],
        controller_ports=ports[nodes : 2 * nodes],
        cassandra_port=ports[-2],
        storage_port=ports[-1],
        logins=_new_logins() if secure else None,
    )


def check_nodes(nodes: int) -> None:
    """More would not fit into most machines."""
    if not 1 <= nodes <= MAX_NODES:
        raise InvalidConfig(f"a local cluster has 1 to {MAX_NODES} nodes, not {nodes}")


def load_state(path: Path) -> ServerState | None:
    """What the folder's cluster decided; None if there is none."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=ServerState)
    except FileNotFoundError:
        return None
    except msgspec.DecodeError as error:
        raise NewerVersion(f"{path} is not from this version of Everlog ({error}): choose another folder") from error


def save_state(path: Path, state: ServerState) -> None:
    """Keep it, for this user's eyes only."""
    write_private(path, msgspec.json.format(msgspec.json.encode(state)))


def write_private(path: Path, content: bytes) -> None:
    """Write a whole file or none, for this user's eyes only."""
    scratch = path.with_name(f".{path.name}.new")
    with open(os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:  # noqa: PTH123
        file.write(content)
    scratch.replace(path)


def _new_kafka_id() -> str:
    """A random UUID as Kafka writes it. It is an argument of a command, so it must not begin with a dash."""
    return base64.urlsafe_b64encode(secrets.token_bytes(16)).decode().rstrip("=").replace("-", "0")


def _new_logins() -> Logins:
    return Logins(
        admin=Login("admin", secrets.token_hex(16)),
        application=Login("everlog", secrets.token_hex(16)),
        keystore=secrets.token_hex(16),
    )


def _free_ports(count: int, hosts: int) -> list[int]:
    """Ports that are free at 127.0.0.1 and its neighbours now."""
    found: list[int] = []
    for port in random.sample(_PORTS, len(_PORTS)):
        if _is_free(port, hosts):
            found.append(port)
        if len(found) == count:
            return found
    raise ClusterFailed(f"there are no {count} free ports between {_PORTS.start} and {_PORTS.stop}: stop some servers")


def _is_free(port: int, hosts: int) -> bool:
    with ExitStack() as stack:
        try:
            for number in range(1, hosts + 1):
                stack.enter_context(socket.socket()).bind((f"127.0.0.{number}", port))
        except OSError:
            return False
    return True
