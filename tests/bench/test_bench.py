"""What the benchmarks count with: laps, percentiles, targets, and the configuration that they hand to a server."""

from __future__ import annotations

import msgspec
import pytest

from bench.report import Line, Target, compare
from bench.rounds import Contender, Laps, Round, alternate, percentile
from bench.serving import as_toml
from everlog.config import CassandraConfig, Config, JournalConfig, KafkaConfig, load_config


def test_laps_time_from_the_first_to_the_last(monkeypatch):
    now = iter([10.0, 12.0])
    monkeypatch.setattr("bench.rounds.time.perf_counter", lambda: next(now))
    laps = Laps(3)
    assert [laps.see(), laps.see(), laps.see()] == [False, False, True]
    assert (laps.round.operations, laps.round.seconds, laps.round.rate) == (2, 2.0, 1.0)


def test_contenders_take_turns_and_the_first_round_does_not_count():
    order: list[str] = []

    def contender(name: str, seconds: list[float]) -> Contender:
        def run() -> Round:
            order.append(name)
            return Round(10, seconds.pop(0))

        return Contender(name, run)

    quick, slow = contender("quick", [100.0, 1.0, 2.0, 5.0]), contender("slow", [1.0, 10.0, 10.0, 10.0])
    alternate([quick, slow], 3)
    assert order == ["quick", "slow"] * 4
    assert (quick.rate, slow.rate) == (5.0, 1.0)


@pytest.mark.parametrize(("percent", "expected"), [(50, 50), (99, 99), (99.9, 100)])
def test_percentiles(percent, expected):
    assert percentile(range(100, 0, -1), percent) == expected


def test_a_missed_target_says_so():
    own, other = Line("x", "Everlog", 30.0), Line("x", "other", 10.0)
    compare(own, [other], against=other, at_least=4)
    assert other.ratio == 3
    assert own.target is not None
    assert not own.target.met
    assert [Target("", value, 20, "under", " ms").met for value in (19.9, 20)] == [True, False]


def test_a_server_gets_the_configuration_of_the_benchmark(tmp_path):
    config = Config(
        data=str(tmp_path),
        journal=JournalConfig(topic_prefix="bench-"),
        kafka=KafkaConfig(bootstrap_servers="127.0.0.1:9092"),
        cassandra=CassandraConfig(contact_points=("127.0.0.1:9043",), keyspace="bench_x"),
    )
    file = tmp_path / "serve.toml"
    file.write_text(as_toml(config))
    assert msgspec.to_builtins(load_config(file)) == msgspec.to_builtins(config)
