"""`[kafka]` as the settings of a Java client.

Certificates and keys travel as text, not as paths, so that executors on other machines need no files.
"""

from __future__ import annotations

import os
from pathlib import Path

from everlog.config import KAFKA_PASSWORD_VARIABLE, KafkaConfig
from everlog.errors import InvalidConfig

_MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}


def java_settings(config: KafkaConfig) -> dict[str, str]:
    """The settings to connect with.

    >>> java_settings(KafkaConfig(tls=True))["security.protocol"]
    'SSL'
    """
    login = config.username is not None
    protocol = ("SASL_" if login else "") + ("SSL" if config.tls else "PLAINTEXT")
    settings = {"bootstrap.servers": config.bootstrap_servers, "security.protocol": protocol}
    if login:
        settings |= {"sasl.mechanism": config.mechanism, "sasl.jaas.config": _login(config)}
    if config.tls:
        settings |= _tls(config)
    return settings


def _login(config: KafkaConfig) -> str:
    password = config.password or os.environ.get(KAFKA_PASSWORD_VARIABLE, "")
    return (
        f"{_MODULES[config.mechanism]} required username={_quoted(config.username or '')} password={_quoted(password)};"
    )


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _tls(config: KafkaConfig) -> dict[str, str]:
    settings: dict[str, str] = {}
    if config.ca_file is not None:
        settings |= {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": _pem("ca_file", config.ca_file)}
    if config.cert_file is not None and config.key_file is not None:
        settings |= {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.certificate.chain": _pem("cert_file", config.cert_file),
            "ssl.keystore.key": _pem("key_file", config.key_file),
        }
    return settings


def _pem(setting: str, path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError as error:
        raise InvalidConfig(f"[kafka] {setting} = {path!r} cannot be read: {error.strerror}") from error
