"""The driver's errors: which may pass, and what each means to an operator."""

from __future__ import annotations

from acsylla import errors as driver

from everlog.config import CASSANDRA_PASSWORD_VARIABLE, CassandraConfig
from everlog.errors import AccessDenied, EverlogError, Refused, StorageFailed, Unreachable

DriverError = driver.CassException

# A time-out says nothing about the outcome, and the rest may be over in a moment: all of them are tried again.
TRANSIENT = (
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
    if isinstance(error, TRANSIENT):
        hint = f", local_datacenter ({config.local_datacenter})" if config.local_datacenter else ""
        return Unreachable(
            f"Cassandra at {points} does not answer as it should ({text}): start the nodes or wait for them, or "
            f"correct [cassandra] contact_points{hint}; what was being done is safe to repeat"
        )
    return StorageFailed(f"Cassandra at {points}: {text}")
