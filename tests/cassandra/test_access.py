"""Credentials, rights and TLS on a Cassandra that asks for them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import msgspec
import pytest

from everlog.cassandra.session import connect
from everlog.cluster.cassandra import find_cassandra_java
from everlog.cluster.local import LocalCluster
from everlog.cluster.secure import ca_file, make_keys
from everlog.cluster.state import ServerState
from everlog.config import CASSANDRA_PASSWORD_VARIABLE, CassandraConfig, load_config
from everlog.errors import AccessDenied, EverlogError
from tests.fixtures.keyspaces import opened, own_keyspace
from tests.fixtures.servers import running

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def secure(tmp_path_factory) -> Iterator[LocalCluster]:
    with running(tmp_path_factory.mktemp("secure"), secure=True) as local:
        yield local


@pytest.fixture
def config(secure) -> CassandraConfig:
    found = load_config(secure.config_file).cassandra
    assert found is not None
    assert found.tls
    return msgspec.structs.replace(found, keyspace="access", connect_timeout_s=10.0)


def administrator(secure: LocalCluster, config: CassandraConfig) -> CassandraConfig:
    state = msgspec.json.decode((secure.folder / "cluster.json").read_bytes(), type=ServerState)
    assert state.logins is not None
    return msgspec.structs.replace(config, username=state.logins.admin.user, password=state.logins.admin.password)


async def refused(config: CassandraConfig) -> EverlogError:
    with pytest.raises(EverlogError) as raised:
        async with opened(config):
            pass
    return raised.value


async def test_a_known_role_gets_in(config, monkeypatch) -> None:
    async with own_keyspace(config), opened(config) as store:
        assert await store.pinned() == []
        assert config.password is not None
        monkeypatch.setenv(CASSANDRA_PASSWORD_VARIABLE, config.password)
        async with opened(msgspec.structs.replace(config, password=None)) as again:
            assert await again.pinned() == []


async def test_wrong_credentials_are_told_from_other_troubles(config, monkeypatch) -> None:
    monkeypatch.delenv(CASSANDRA_PASSWORD_VARIABLE, raising=False)
    for changes in ({"password": "wrong"}, {"username": "nobody"}, {"password": None}, {"username": None}):
        error = await refused(msgspec.structs.replace(config, **changes))
        assert isinstance(error, AccessDenied), error
        assert CASSANDRA_PASSWORD_VARIABLE in str(error)


async def test_a_role_without_rights_is_told_what_it_lacks(secure, config) -> None:
    """A role that may not create a keyspace; one that may not read its tables; one that may only use them."""
    async with own_keyspace(administrator(secure, config)) as admin:
        await admin.change_schema("CREATE ROLE IF NOT EXISTS guest WITH LOGIN = true AND PASSWORD = 'guest'")
        guest = msgspec.structs.replace(config, username="guest", password="guest")
        error = await refused(guest)
        assert isinstance(error, AccessDenied), error
        assert "CREATE" in str(error)
        assert "administrator" in str(error)
        async with opened(config):
            pass
        error = await refused(guest)
        assert isinstance(error, AccessDenied), error
        assert "GRANT" in str(error)
        for right in ("SELECT", "MODIFY"):
            await admin.change_schema(f"GRANT {right} ON KEYSPACE {config.keyspace} TO guest")
        await eventually_opens(guest)
        await admin.change_schema(f"DROP TABLE {config.keyspace}.status")
        assert isinstance(await refused(guest), AccessDenied)


async def eventually_opens(config: CassandraConfig) -> None:
    """A node remembers rights for some seconds."""
    deadline = time.monotonic() + 60
    while True:
        try:
            async with opened(config) as store:
                assert await store.pinned() == []
                return
        except AccessDenied:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.2)


async def test_certificates_are_checked(config, tmp_path) -> None:
    plain = msgspec.structs.replace(config, tls=False, connect_timeout_s=3.0)
    assert "contact_points" in str(await refused(plain))
    nonsense = tmp_path / "ca.pem"
    nonsense.write_text("no certificate")
    assert "ca_file" in str(await refused(msgspec.structs.replace(config, ca_file=str(nonsense))))
    make_keys(find_cassandra_java(), tmp_path, ["127.0.0.1"], "password")
    assert "ca_file" in str(await refused(msgspec.structs.replace(config, ca_file=str(ca_file(tmp_path)))))
    session = await connect(config)
    await session.close()
