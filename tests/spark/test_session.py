"""What is settled before Spark starts, and what its errors come to."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from everlog.config import CassandraConfig, Config, KafkaConfig
from everlog.errors import InvalidConfig, MissingProgram
from everlog.log.kafka.client import consumer_settings
from everlog.spark.jobs import explain
from everlog.spark.process import for_tasks
from everlog.spark.session import open_context


@pytest.mark.parametrize("variables", [{"JAVA_HOME": "/nowhere"}, {"PATH": "/nowhere"}])
def test_without_java_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(MissingProgram, match=r"Java 17 or 21.*/nowhere|no JAVA_HOME") as caught:
        open_context(Config())
    assert not caught.value.retriable
    assert "install it" in str(caught.value)


def test_certificates_and_passwords_travel_to_the_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Executors on other machines have none of these files, nor this process's environment."""
    for name in ("ca", "cert", "key"):
        (tmp_path / name).write_text(f"the {name}")
    monkeypatch.setenv("EVERLOG_KAFKA_PASSWORD", "secret")
    files = {f"{name}_file": str(tmp_path / name) for name in ("ca", "cert", "key")}
    kafka = KafkaConfig(tls=True, username="u", conf={"ssl.key.password": "p"}, **files)
    config = for_tasks(Config(kafka=kafka, cassandra=CassandraConfig()))
    monkeypatch.delenv("EVERLOG_KAFKA_PASSWORD")
    assert config.kafka is not None
    settings = consumer_settings(config.kafka)
    assert settings["sasl.password"] == "secret"
    assert settings["ssl.key.password"] == "p"
    assert {name: settings[f"ssl.{name}.pem"] for name in ("ca", "certificate", "key")} == {
        "ca": "the ca",
        "certificate": "the cert",
        "key": "the key",
    }
    assert not [name for name in settings if name.endswith(".location")]
    lost = KafkaConfig(tls=True, ca_file=str(tmp_path / "none"))
    with pytest.raises(InvalidConfig, match="ca_file"):
        for_tasks(Config(kafka=lost, cassandra=CassandraConfig()))


SPARK_SAYS = """An error occurred while calling z:org.apache.spark.api.python.PythonRDD.collectAndServe.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 1.0 failed 1 times, most recent \
failure: Lost task 0.0 in stage 1.0 (TID 1) (host executor driver): {cause}
\tat org.apache.spark.scheduler.DAGScheduler.abortStage(DAGScheduler.scala:1)"""
RAISED = """org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "worker.py", line 1, in main
    process()
everlog.errors.storage.StorageFailed: the disk is full: make room

\tat org.apache.spark.api.python.BasePythonRunner"""


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (SPARK_SAYS.format(cause=RAISED), "the disk is full: make room"),
        (SPARK_SAYS.format(cause="ExecutorLostFailure (executor 1 exited)"), "ExecutorLostFailure (executor 1 exited)"),
        ("plain words", "plain words"),
        ("", "RuntimeError('')"),
    ],
)
def test_what_went_wrong_is_found_in_what_spark_says(error: str, said: str) -> None:
    assert said in explain(RuntimeError(error))
    assert "\n" not in explain(RuntimeError(error))
