"""What `--secure` adds: certificates of an authority of the cluster's own, users, roles and rights.

Clients speak TLS and say who they are: SCRAM-SHA-512 to Kafka, a password to Cassandra. Brokers do so among
themselves too; as controllers they show each other certificates, because no user is known before they agree.
"""

from __future__ import annotations

import ssl
import tempfile
from pathlib import Path
from typing import Any

from everlog.cluster.java import Java
from everlog.cluster.processes import run_to_end
from everlog.cluster.state import Login, Logins

CA_FILE = "ca.pem"
CASSANDRA_DEFAULT = Login("cassandra", "cassandra")
KEYS = "keys"
_SERVER = "everlog-server"
_DAYS = "3650"
_MECHANISM = "SCRAM-SHA-512"


def ca_file(folder: Path) -> Path:
    """The certificate by which clients know the servers."""
    return folder / KEYS / CA_FILE


def client_context(folder: Path) -> ssl.SSLContext:
    """Trusts this cluster's servers and no others."""
    return ssl.create_default_context(cafile=ca_file(folder))


def make_keys(java: Java, folder: Path, hosts: list[str], password: str) -> None:
    """An authority, and one key with its certificate for all servers: all of them or, if this fails, none."""
    with tempfile.TemporaryDirectory(prefix=".keys-", dir=folder) as scratch:
        made = Path(scratch) / KEYS
        made.mkdir(mode=0o700)
        _make_keys(java, made, hosts, password)
        made.replace(folder / KEYS)


def _make_keys(java: Java, folder: Path, hosts: list[str], password: str) -> None:
    (folder / "password").write_text(password)  # keytool reads it there: every user can see a command line
    secret = ["-storepass:file", str(folder / "password"), "-storetype", "PKCS12"]
    authority, server, trust = (["-keystore", str(folder / name)] for name in ("ca.p12", "server.p12", "trust.p12"))
    key = ["-genkeypair", "-keyalg", "EC", "-groupname", "secp256r1", "-validity", _DAYS]
    names = ",".join(["dns:localhost", *(f"ip:{host}" for host in hosts)])
    certificate, request, signed = str(folder / CA_FILE), str(folder / "server.csr"), str(folder / "server.pem")
    for arguments in (
        [*key, *authority, *secret, "-alias", "ca", "-dname", "CN=everlog-ca", "-ext", "bc:c=ca:true"],
        ["-exportcert", *authority, *secret, "-alias", "ca", "-rfc", "-file", certificate],
        ["-importcert", *trust, *secret, "-alias", "ca", "-noprompt", "-file", certificate],
        [*key, *server, *secret, "-alias", "server", "-dname", f"CN={_SERVER}"],
        ["-certreq", *server, *secret, "-alias", "server", "-file", request],
        [
            *("-gencert", *authority, *secret, "-alias", "ca", "-validity", _DAYS, "-rfc"),
            *("-infile", request, "-outfile", signed, "-ext", f"san={names}", "-ext", "eku=serverAuth,clientAuth"),
        ],
        ["-importcert", *server, *secret, "-alias", "ca", "-noprompt", "-file", certificate],
        ["-importcert", *server, *secret, "-alias", "server", "-noprompt", "-file", signed],
    ):
        run_to_end("the keys of the cluster cannot be made", [str(java.keytool), *arguments])
    for name in ("password", "server.csr", "server.pem"):
        (folder / name).unlink()


def kafka_properties(logins: Logins | None, folder: Path) -> dict[str, Any]:
    """How a broker's listeners are protected."""
    if logins is None:
        return {"listener.security.protocol.map": "CLIENT:PLAINTEXT,CONTROLLER:PLAINTEXT"}
    admin, keys = logins.admin, folder / KEYS
    module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    return {
        "listener.security.protocol.map": "CLIENT:SASL_SSL,CONTROLLER:SSL",
        "listener.name.client.sasl.enabled.mechanisms": _MECHANISM,
        "listener.name.client.scram-sha-512.sasl.jaas.config": (
            f'{module} required username="{admin.user}" password="{admin.password}";'
        ),
        "sasl.mechanism.inter.broker.protocol": _MECHANISM,
        "listener.name.controller.ssl.client.auth": "required",
        "ssl.keystore.type": "PKCS12",
        "ssl.keystore.location": keys / "server.p12",
        "ssl.keystore.password": logins.keystore,
        "ssl.truststore.type": "PKCS12",
        "ssl.truststore.location": keys / "trust.p12",
        "ssl.truststore.password": logins.keystore,
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": f"User:{admin.user};User:CN={_SERVER}",
    }


def kafka_users(logins: Logins | None) -> list[str]:
    """The users that a broker knows from its first start on, as arguments of its storage tool."""
    if logins is None:
        return []
    scram = f"{_MECHANISM}=[name={{0.user}},password={{0.password}}]"
    return [part for login in (logins.admin, logins.application) for part in ("--add-scram", scram.format(login))]


def kafka_client(login: Login | None, folder: Path) -> dict[str, Any]:
    """The settings by which librdkafka logs in."""
    if login is None:
        return {}
    return {
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(ca_file(folder)),
        "sasl.mechanism": _MECHANISM,
        "sasl.username": login.user,
        "sasl.password": login.password,
    }


def cassandra_options(logins: Logins | None) -> list[str]:
    """Make the first super user at once instead of after ten seconds; less than this keeps a core busy."""
    return ["-Dcassandra.superuser_setup_delay_ms=500"] if logins else []


def cassandra_settings(logins: Logins | None, folder: Path) -> dict[str, Any]:
    """How a node protects its port for clients."""
    if logins is None:
        return {"authenticator": "AllowAllAuthenticator", "authorizer": "AllowAllAuthorizer"}
    return {
        "authenticator": "PasswordAuthenticator",
        "authorizer": "CassandraAuthorizer",
        "role_manager": "CassandraRoleManager",
        "client_encryption_options": {
            "enabled": True,
            "optional": False,
            "keystore": str(folder / KEYS / "server.p12"),
            "keystore_password": logins.keystore,
            "store_type": "PKCS12",
        },
    }
