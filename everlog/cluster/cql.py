"""Just enough of Cassandra's native protocol (version 4) to ask a node whether it serves, and to set up its roles."""

from __future__ import annotations

import socket
import ssl
import struct
from types import TracebackType
from typing import Self

from everlog.cluster.state import Login

_ERROR, _STARTUP, _READY, _AUTHENTICATE, _QUERY, _AUTH_RESPONSE, _AUTH_SUCCESS = 0, 1, 2, 3, 7, 15, 16
_HEADER = struct.Struct(">BBhBi")
_BAD_CREDENTIALS = 0x0100
PATIENCE_S = 10.0


class CqlError(Exception):
    """The node refused; `code` is the protocol's."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code

    @property
    def bad_credentials(self) -> bool:
        return self.code == _BAD_CREDENTIALS


class Cql:
    """A connection to one node: `with Cql(host, port) as cql: cql.query("SELECT …")`."""

    def __init__(self, host: str, port: int, *, login: Login | None = None, tls: ssl.SSLContext | None = None) -> None:
        self._socket = socket.create_connection((host, port), timeout=PATIENCE_S)
        try:
            if tls is not None:
                self._socket = tls.wrap_socket(self._socket, server_hostname=host)
            self._log_in(login or Login("", ""))
        except BaseException:
            self._socket.close()
            raise

    def query(self, statement: str, *, replicas: int = 1) -> None:
        """Run a statement at consistency ONE, TWO or THREE; what it returns is not looked at."""
        text = statement.encode()
        self._call(_QUERY, struct.pack(">i", len(text)) + text + struct.pack(">HB", replicas, 0))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()

    def _log_in(self, login: Login) -> None:
        opcode, _ = self._call(_STARTUP, struct.pack(">H", 1) + _string("CQL_VERSION") + _string("3.0.0"))
        if opcode == _AUTHENTICATE:
            token = f"\0{login.user}\0{login.password}".encode()
            opcode, _ = self._call(_AUTH_RESPONSE, struct.pack(">i", len(token)) + token)
        assert opcode in (_READY, _AUTH_SUCCESS)

    def _call(self, opcode: int, body: bytes) -> tuple[int, bytes]:
        self._socket.sendall(_HEADER.pack(4, 0, 0, opcode, len(body)) + body)
        _, _, _, answer, length = _HEADER.unpack(self._receive(_HEADER.size))
        content = self._receive(length)
        if answer == _ERROR:
            code, size = struct.unpack_from(">iH", content)
            raise CqlError(code, content[6 : 6 + size].decode(errors="replace"))
        return answer, content

    def _receive(self, count: int) -> bytes:
        parts = bytearray()
        while len(parts) < count:
            part = self._socket.recv(count - len(parts))
            if not part:
                raise ConnectionResetError("the node closed the connection")
            parts += part
        return bytes(parts)


def _string(text: str) -> bytes:
    return struct.pack(">H", len(text)) + text.encode()
