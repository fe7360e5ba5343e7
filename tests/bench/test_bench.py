"""What the benchmarks count with: laps, percentiles, targets, turns, and the configuration for a server."""

from __future__ import annotations

import json
import subprocess
import sys

import msgspec
import pytest
from click.testing import CliRunner

import bench.__main__
from bench.against import CannotMeasure, Comparison, compare_turns, other_checkout, run, this_checkout, values
from bench.queue_drains import Drainer, drains
from bench.report import Line, Target, compare
from bench.rounds import Contender, Laps, Round, alternate, percentile, ratio
from bench.server_process import as_toml
from bench.settings import Settings
from everlog.config import CassandraConfig, Config, JournalConfig, KafkaConfig, load_config


def test_laps_time_from_the_first_to_the_last(monkeypatch):
    now = iter([10.0, 12.0])
    monkeypatch.setattr("bench.rounds.time.perf_counter", lambda: next(now))
    laps = Laps(3)
    assert [laps.see(), laps.see(), laps.see()] == [False, False, True]
    assert (laps.round.operations, laps.round.seconds, laps.round.rate) == (2, 2.0, 1.0)


def test_laps_of_what_takes_time_count_from_the_first_beginning(monkeypatch):
    now = iter([10.0, 14.0])
    monkeypatch.setattr("bench.rounds.time.perf_counter", lambda: next(now))
    laps = Laps(2)
    laps.begin()
    laps.begin()
    assert [laps.see(), laps.see()] == [False, True]
    assert (laps.round.operations, laps.round.seconds, laps.round.rate) == (2, 4.0, 0.5)


def test_a_ratio_is_taken_turn_by_turn():
    one, other = Contender("one", lambda: Round(1, 1.0)), Contender("other", lambda: Round(1, 1.0))
    one.rounds = [Round(10, 1.0), Round(10, 10.0), Round(40, 1.0)]
    other.rounds = [Round(5, 1.0), Round(5, 10.0), Round(5, 1.0)]
    assert ratio(one, other) == 2


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


class FakeSide:
    """A side that runs jobs at a rate of its own, or at the ideal one, whichever is lower."""

    def __init__(self, alone: float, together: float) -> None:
        self.rates = (alone, together)

    def put_and_drain(self, jobs: int, concurrency: int, seconds: float) -> Round:
        rate = self.rates[concurrency > 1]
        return Round(jobs, jobs / (min(rate, concurrency / seconds) if seconds else rate))


def test_drains_are_held_to_the_ideal_to_procrastinate_and_to_the_fastest(tmp_path, monkeypatch):
    monkeypatch.setattr("bench.rounds.gc.collect", lambda: 0)  # there is no garbage, and it would take seconds
    rates = {"Everlog": (61, 300), "fast": (70, 120), "procrastinate": (10, 10)}
    drainers = [Drainer(name, FakeSide(*pair), 100, 50) for name, pair in rates.items()]
    lines = drains(Settings(tmp_path, rounds=1, queue_drain_s=0.01), drainers)
    assert len(lines) == 9 * len(rates)
    found = [(round(line.target.value, 2), line.target.met) for line in lines if line.target is not None]
    # One at a time, a hundred at a time, then 15 ms: of 66.7 and of 666.7 a second.
    assert found == [(6.1, True), (2.5, True), (0.91, True), (0.45, False)]


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


FAKE_BENCH = """
import json, os, pathlib, sys
name = sys.argv[sys.argv.index("--only") + 1]
with open(os.environ["FAKE_BENCH_TRACE"], "a") as trace:
    trace.write(f"{COMMIT} {' '.join(sys.argv[1:-1])}\\n")
pathlib.Path("bench-results").mkdir()
line = {"measurement": name, "rate": RATE, "unit": "/s", "milliseconds": {"p50": 10 / RATE, "p90": 99.0}}
lines = [line | {"who": "Everlog"}, line | {"who": NAME, "rate": 7.0, "milliseconds": {}}]
failed = {name: "RuntimeError: no disk"} if name == "failing" else {}
pathlib.Path("bench-results/1.json").write_text(json.dumps({"lines": lines, "failed": failed}))
"""
FAKE_SETUP = f"""#!/bin/sh
echo "$1" >>setups
mkdir -p .venv/bin
printf '#!/bin/sh\\nexec {sys.executable} "$@"\\n' >.venv/bin/python
chmod +x .venv/bin/python
"""


@pytest.fixture
def commits(tmp_path, monkeypatch):
    """A repository with two commits, `old` and `new`, whose benchmark takes no time."""
    root = tmp_path / "repository"
    (root / "scripts").mkdir(parents=True)
    (root / "bench").mkdir()
    (root / "bench" / "__init__.py").touch()
    monkeypatch.setenv("FAKE_BENCH_TRACE", str(tmp_path / "trace"))
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", "/dev/null")
    monkeypatch.chdir(tmp_path)
    (root / "scripts" / "setup.sh").write_text(FAKE_SETUP)
    (root / "scripts" / "setup.sh").chmod(0o755)
    (root / "scripts" / "apt.sh").touch()
    for name in ("requirements-build.lock", "requirements.lock", "requirements-bench.lock"):
        (root / name).write_text("")
    git(root, "init", "--quiet")
    for name, rate, other in (("old", 10.0, "other, 8 threads (its best)"), ("new", 30.0, "other, 8 threads")):
        (root / "bench" / "__main__.py").write_text(f"COMMIT, RATE, NAME = {name!r}, {rate}, {other!r}\n{FAKE_BENCH}")
        git(root, "add", ".")
        git(root, "-c", "user.name=x", "-c", "user.email=x@example.org", "commit", "--quiet", "-m", name)
        git(root, "tag", name)
    return root


def test_another_commit_is_set_up_by_the_script_of_this_one(commits, tmp_path):
    """What an old script did may not work any more with what was released since."""
    (commits / "scripts" / "setup.sh").write_text(f"{FAKE_SETUP}\ntouch set-up-by-the-new-one\n")
    with other_checkout("old", commits, tmp_path / "cache") as old:
        assert (old.folder / "set-up-by-the-new-one").exists()


def git(root, *words):
    subprocess.run(["git", "-C", root, *words], check=True)


def test_two_commits_are_measured_by_turns(commits, tmp_path):
    with other_checkout("old", commits, tmp_path / "cache") as old:
        report = run((old, this_checkout(commits)), "bench", ["tiny"], ["--seed", "1"], 2, tmp_path)
    turns = (tmp_path / "trace").read_text().splitlines()
    words = "--only tiny --rounds 3 --seed 1 --folder"
    assert turns == [f"{side} {words}" for side in ("old", "new", "new", "old")]
    assert not report.failed
    ratios = {one.key: one.ratio for one in report.comparisons}
    assert ratios == {
        ("tiny", "Everlog", "rate"): 3.0,
        ("tiny", "Everlog", "p50"): pytest.approx(1 / 3),
        ("tiny", "other, 8 threads", "rate"): 1.0,
    }
    (file,) = (tmp_path / "bench-results").glob("against-*.json")
    written = json.loads(file.read_text())
    assert written["comparisons"][0]["ratios"] == [3.0, 3.0]
    assert written["comparisons"][0]["old"] == [10.0, 10.0]
    assert git_name(commits, "old") == written["old"]


def git_name(root, commit):
    done = subprocess.run(
        ["git", "-C", root, "rev-parse", "--short", commit], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_an_environment_is_made_once_for_the_same_requirements(commits, tmp_path):
    with other_checkout("old", commits, tmp_path / "cache") as old:
        (old.folder / ".venv" / "kept").touch()
        (old.folder / "left-behind").touch()
    with other_checkout("new", commits, tmp_path / "cache") as new:
        assert new.folder == old.folder
        assert (new.folder / ".venv" / "kept").exists()
        assert not (new.folder / "left-behind").exists()
        assert "'new'" in (new.folder / "bench" / "__main__.py").read_text()
        # The commit's own script decides what is left to do.
        assert (new.folder / "setups").read_text() == "bench\n"


def test_a_measurement_that_fails_says_where_and_why(commits, tmp_path):
    with other_checkout("old", commits, tmp_path / "cache") as old:
        report = run((old, this_checkout(commits)), "bench", ["failing", "tiny"], [], 1, tmp_path)
    assert list(report.failed) == ["failing"]
    assert report.failed["failing"].startswith("old: RuntimeError: no disk")
    assert len(report.comparisons) == 3


def test_an_unknown_commit_is_refused(commits, tmp_path):
    with pytest.raises(CannotMeasure, match="nowhere"), other_checkout("nowhere", commits, tmp_path / "cache"):
        pass


def test_ratios_are_taken_turn_by_turn_and_shown_with_their_spread():
    found = Comparison(("x", "Everlog", "rate"), "/s", (10.0, 20.0, 10.0), (20.0, 20.0, 30.0))
    assert (found.ratios, found.ratio) == ([2.0, 1.0, 3.0], 2.0)
    written = found.as_json()
    assert (written["lowest"], written["highest"]) == (1.0, 3.0)


def test_a_figure_that_only_one_side_has_is_named():
    old = values([Line("x", "Everlog", 1.0).as_json(), Line("x", "gone", 1.0).as_json()])
    new = values([Line("x", "Everlog", 2.0).as_json()])
    found, rest = compare_turns([(old, new)])
    assert [one.key for one in found] == [("x", "Everlog", "rate")]
    assert rest == {("x", "gone", "rate")}


def test_the_times_of_a_single_operation_are_left_to_its_rate():
    lines = [
        Line("x", str(times), rate, "/s", times).as_json()
        for times, rate in (({"p50": 1.0, "p99": 1.0}, 5.0), ({"p50": 1.0, "p99": 2.0}, 5.0), ({"p50": 1.0}, None))
    ]
    assert [kind for _, _, kind in values(lines)] == ["rate", "rate", "p50", "p99", "p50"]


def test_the_options_of_a_comparison_reach_both_sides(monkeypatch):
    asked = []

    class Done:
        failed = ()

    monkeypatch.setattr(bench.__main__, "against", lambda *words: asked.append(words) or Done)
    words = ["--against", "abc", "--quick", "--only", "replay", "--turns", "4", "--no-big", "--events", "2000"]
    done = CliRunner().invoke(bench.__main__.main, words)
    assert done.exit_code == 0, done.output
    (commit, program, names, passed, turns, _) = asked[0]
    assert (commit, program, names, turns) == ("abc", "bench", ["replay"], 4)
    assert passed == ["--seed", "1", "--quick", "--events", "2000", "--no-big"]
