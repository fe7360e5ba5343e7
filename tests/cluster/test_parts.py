"""The parts of `everlog cluster` that need no server: jars, Java, processes, logs, what is decided, bad input."""

from __future__ import annotations

import hashlib
import os
import signal
import stat
import threading
import time
from pathlib import Path

import pytest

from everlog.cluster import jars, java
from everlog.cluster.jars import cache_folder, exclusively, expected_jars, find_jars
from everlog.cluster.java import find_java
from everlog.cluster.kafka import write_properties
from everlog.cluster.local import LocalCluster
from everlog.cluster.logs import GrowingFile, follow
from everlog.cluster.processes import DetachedProcess, run_to_end
from everlog.cluster.state import load_state, new_state, save_state
from everlog.errors import ClusterFailed, DownloadFailed, InvalidConfig, MissingProgram, NewerVersion
from tests.cli_support import Cli
from tests.waiting import blocking_until

# A Maven that writes what it was told to, and says so as the real one does.
_MAVEN = """#!/bin/sh
echo run >>"$WORK/runs"
for word in "$@"; do case $word in -DoutputDirectory=*) target=${word#*=} ;; esac; done
mkdir -p "$target"
for name in $NAMES; do
    echo "[INFO] Downloaded from central: https://example.org/some/where/$name (1 kB at 2 kB/s)"
    printf %s "contents of $name" >"$target/$name"
done
echo unlisted >"$target/unlisted.jar"
if [ -n "$COMPLAINT" ]; then
    printf '[ERROR] %s -> [Help 1]\\n[ERROR]\\n[ERROR] For more, read on.\\n' "$COMPLAINT"
    exit 1
fi
"""


def program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


@pytest.fixture
def maven(tmp_path, monkeypatch) -> Path:
    """Brings two jars, and they are the ones that are expected; the folder in which it notes its runs."""
    names = ("one-1.0.jar", "two-2.0.jar")
    digests = {name: hashlib.sha256(f"contents of {name}".encode()).hexdigest() for name in names}
    monkeypatch.setattr(jars, "expected_jars", lambda profile: digests)
    monkeypatch.setenv("EVERLOG_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("EVERLOG_MVN", str(program(tmp_path / "mvn", _MAVEN)))
    monkeypatch.setenv("WORK", str(tmp_path))
    monkeypatch.setenv("NAMES", " ".join(names))
    monkeypatch.setenv("COMPLAINT", "")
    return tmp_path


def test_jars_are_brought_once_and_only_those_that_are_listed(maven):
    seen: list[tuple[str, int, int]] = []
    folder = find_jars("kafka", lambda *step: seen.append(step))
    assert sorted(path.name for path in folder.iterdir()) == ["one-1.0.jar", "two-2.0.jar"]
    assert seen == [("jars of kafka", done, 2) for done in (0, 1, 2, 2)]
    assert find_jars("kafka") == folder
    (folder / "one-1.0.jar").unlink()
    find_jars("kafka")
    assert (folder / "one-1.0.jar").exists(), "what was lost is brought again"
    assert (maven / "runs").read_text().split() == ["run", "run"]


def test_two_at_once_bring_the_jars_once(maven):
    threads = [threading.Thread(target=find_jars, args=("kafka",)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert (maven / "runs").read_text().split() == ["run"]


def test_a_wipe_does_not_let_two_in(tmp_path):
    """Whoever waited for the file that is removed waits for the next one like everybody else."""
    path = tmp_path / "lock"
    inside, most, waiting = 0, 0, [threading.Event() for _ in range(4)]
    counting = threading.Lock()

    def work(ready: threading.Event) -> None:
        nonlocal inside, most
        ready.set()
        with exclusively(path):
            with counting:
                inside += 1
                most = max(most, inside)
            time.sleep(0.05)
            with counting:
                inside -= 1

    threads = [threading.Thread(target=work, args=(ready,)) for ready in waiting]
    with exclusively(path):
        for thread in threads[:2]:
            thread.start()
        assert all(ready.wait(60) for ready in waiting[:2])
        time.sleep(0.1)  # they wait for this very file
        path.unlink()
    for thread in threads[2:]:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert (most, inside) == (1, 0)


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("COMPLAINT", "Could not transfer artifact x: Connection refused", "Could not transfer artifact x: Connection"),
        ("NAMES", "one-1.0.jar", "brought no two-2.0.jar"),
    ],
)
def test_a_failed_download_says_why_and_leaves_nothing(maven, monkeypatch, variable, value, message):
    monkeypatch.setenv(variable, value)
    with pytest.raises(DownloadFailed, match=message) as caught:
        find_jars("kafka")
    assert "Help 1" not in str(caught.value)
    assert "settings.xml" in str(caught.value)
    assert [path for path in (maven / "cache" / "jars").iterdir() if path.suffix != ".lock"] == []


def test_a_damaged_jar_is_refused(maven, monkeypatch):
    digests = dict.fromkeys(("one-1.0.jar", "two-2.0.jar"), "0" * 64)
    monkeypatch.setattr(jars, "expected_jars", lambda profile: digests)
    with pytest.raises(DownloadFailed, match=r"one-1\.0\.jar is damaged"):
        find_jars("kafka")


def test_without_maven_the_remedy_is_named(maven, monkeypatch):
    monkeypatch.setenv("EVERLOG_MVN", "")
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(MissingProgram, match=r"install maven.*EVERLOG_MVN"):
        find_jars("kafka")


def test_the_cache_is_where_the_variables_say(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", "/home/somebody")
    monkeypatch.delenv("EVERLOG_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache_folder() == Path("/home/somebody/.cache/everlog")
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    assert cache_folder() == Path("/caches/everlog")
    monkeypatch.setenv("EVERLOG_CACHE", str(tmp_path))
    assert cache_folder() == tmp_path
    monkeypatch.setenv("EVERLOG_CACHE", "/a:b")
    with pytest.raises(InvalidConfig, match="EVERLOG_CACHE"):
        cache_folder()


def test_the_list_of_jars_names_what_the_pom_asks_for():
    assert "kafka_2.13-4.3.1.jar" in expected_jars("kafka")
    assert "cassandra-all-5.0.9.jar" in expected_jars("cassandra")
    with pytest.raises(InvalidConfig, match="kafka or cassandra"):
        expected_jars("mysql")


def java_home(folder: Path, version: str) -> str:
    program(folder / "bin" / "java", f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-01-01' >&2\n")
    return str(folder)


def test_java_is_chosen_by_its_version(tmp_path, monkeypatch):
    monkeypatch.setattr(java, "INSTALLED", tmp_path / "installed")
    monkeypatch.setenv("PATH", java_home(tmp_path / "on-path", "1.8.0_402") + "/bin:/bin:/usr/bin")
    monkeypatch.setenv("JAVA_HOME", java_home(tmp_path / "newest", "25.0.1"))
    java_home(tmp_path / "installed" / "jdk-17", "17.0.15")
    assert find_java("Kafka", range(17, 100)).version == 25
    assert find_java("Cassandra", (17, 11)).program == tmp_path / "installed" / "jdk-17" / "bin" / "java"
    monkeypatch.setenv("OTHER_JAVA", java_home(tmp_path / "other", "11.0.2"))
    assert find_java("Cassandra", (17, 11), "OTHER_JAVA").version == 11


def test_without_java_the_error_says_what_was_found_and_what_is_needed(tmp_path, monkeypatch):
    monkeypatch.setattr(java, "INSTALLED", tmp_path / "installed")
    monkeypatch.setenv("JAVA_HOME", java_home(tmp_path / "newest", "25.0.1"))
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(MissingProgram, match=r"needs Java 17 or 11.* is 25.*set THE_JAVA") as caught:
        find_java("Cassandra", (17, 11), "THE_JAVA")
    assert "openjdk-17-jre-headless" in str(caught.value)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "gone"))
    with pytest.raises(MissingProgram, match=r"17 or newer.* is no Java"):
        find_java("Kafka", range(17, 100))


@pytest.fixture
def process(tmp_path) -> DetachedProcess:
    return DetachedProcess(tmp_path / "pid")


def start(process: DetachedProcess, tmp_path: Path, script: str) -> int:
    process.start(["/bin/sh", "-c", script], tmp_path / "output")
    pid = process.pid
    assert pid is not None
    return pid


def test_a_process_is_found_again_and_ends_when_asked(process, tmp_path):
    pid = start(process, tmp_path, "echo begun; exec sleep 600")
    again = DetachedProcess(tmp_path / "pid")
    assert again.pid == pid
    assert os.getsid(pid) == pid, "a session of its own"
    memory = again.memory
    assert memory is not None
    assert memory > 0
    again.ask_to_stop()
    assert again.wait_until_gone(30)
    assert process.pid is None
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_paused_process_can_be_asked_to_stop(process, tmp_path):
    """One that handles the signal itself, as Java does, cannot do so while it is paused."""
    pid = start(process, tmp_path, "trap 'exit 0' TERM; echo ready; while true; do sleep 0.1; done")
    wait_for_output(tmp_path, "ready")
    os.kill(pid, signal.SIGSTOP)
    process.ask_to_stop()
    assert process.wait_until_gone(30)


def wait_for_output(tmp_path: Path, text: str) -> None:
    blocking_until(lambda: text in (tmp_path / "output").read_text())


def test_one_that_does_not_listen_is_killed(process, tmp_path):
    start(process, tmp_path, "trap '' TERM; echo deaf; while true; do sleep 0.1; done")
    wait_for_output(tmp_path, "deaf")
    process.ask_to_stop()
    assert not process.wait_until_gone(0.2)
    process.kill()
    assert process.pid is None


def test_a_reused_pid_is_not_ours(process, tmp_path):
    """After a reboot the number in the file may be anybody's: here it is this test's."""
    start(process, tmp_path, "exec sleep 600")
    process.kill()
    (tmp_path / "pid").write_text(f'{{"pid": {os.getpid()}, "born": "1"}}')
    assert process.pid is None
    process.kill()  # and this test goes on


@pytest.mark.parametrize("content", ["", "12", "{}", '{"pid": "x"}'])
def test_a_damaged_pid_file_names_no_process(process, tmp_path, content):
    (tmp_path / "pid").write_text(content)
    assert process.pid is None


def test_a_failing_program_shows_its_last_words_but_not_its_arguments():
    with pytest.raises(ClusterFailed, match=r"made no keys: sh failed with code 3: it broke") as caught:
        run_to_end("made no keys", ["/bin/sh", "-c", "echo it broke; exit 3", "a-password"])
    assert "a-password" not in str(caught.value)
    with pytest.raises(ClusterFailed, match="did not end within"):
        run_to_end("slow", ["/bin/sh", "-c", "exec sleep 60"], patience=0.1)


def test_a_log_is_followed_also_into_a_new_file(tmp_path):
    path = tmp_path / "server.log"
    file = GrowingFile(path)
    assert file.new_lines() == []
    path.write_text("one\ntwo\nthr")
    assert file.new_lines() == ["one", "two"]
    with path.open("a") as more:
        more.write("ee\n")
    assert file.new_lines() == ["three"]
    path.rename(tmp_path / "server.log.1")
    path.write_text("a new and longer line\n")
    assert file.new_lines() == ["a new and longer line"]
    path.write_text("cut\n")
    assert file.new_lines() == ["cut"]


def test_following_begins_with_the_last_lines(tmp_path):
    (tmp_path / "a.log").write_text("1\n2\n3\n")
    (tmp_path / "b.log").write_text("x\n")
    lines = follow({"a": tmp_path / "a.log", "b": tmp_path / "b.log"}, 2)
    assert [next(lines) for _ in range(3)] == [("a", "2"), ("a", "3"), ("b", "x")]
    with (tmp_path / "b.log").open("a") as file:
        file.write("y\n")
    assert next(lines) == ("b", "y")


def test_what_is_decided_is_kept_and_private(tmp_path):
    state = new_state(3, secure=True)
    ports = [*state.kafka_ports, *state.controller_ports, state.cassandra_port, state.storage_port]
    assert len(set(ports)) == 8
    save_state(tmp_path / "cluster.json", state)
    assert load_state(tmp_path / "cluster.json") == state
    assert stat.S_IMODE((tmp_path / "cluster.json").stat().st_mode) == 0o600
    assert load_state(tmp_path / "none.json") is None
    (tmp_path / "cluster.json").write_text('{"nodes": 3}')
    with pytest.raises(NewerVersion, match="choose another folder"):
        load_state(tmp_path / "cluster.json")


def test_the_id_of_a_cluster_never_looks_like_an_option():
    assert not any("-" in new_state(1, secure=False).kafka_id for _ in range(200))


def test_properties_survive_odd_characters(tmp_path):
    write_properties(tmp_path / "p", {"log.dirs": "/tmp/Jürgen \\ x", "node.id": 1})
    assert (tmp_path / "p").read_bytes() == b"log.dirs=/tmp/J\\u00fcrgen \\\\ x\nnode.id=1\n"


@pytest.mark.parametrize("nodes", [0, -1, 10])
def test_a_cluster_has_one_to_nine_nodes(tmp_path, nodes):
    cli = Cli(tmp_path)
    error = cli.error("cluster", "up", "--nodes", str(nodes), "--folder", str(tmp_path / "c"), code=2)
    assert "1 to 9 nodes" in error["message"]
    assert not (tmp_path / "c").exists()


def test_folders_that_cannot_hold_a_cluster_are_refused(tmp_path):
    cli = Cli(tmp_path)
    assert "comma" in cli.error("cluster", "up", "--folder", str(tmp_path / "a,b"), code=2)["message"]
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "everlog.toml").write_text("")
    error = cli.error("cluster", "up", "--folder", str(tmp_path / "mine"), code=2)
    assert "choose another folder" in error["message"]
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["everlog.toml"]


@pytest.mark.parametrize("command", ["down", "status", "logs"])
def test_no_cluster_is_exit_code_4(tmp_path, command):
    error = Cli(tmp_path).error("cluster", command, "--folder", str(tmp_path / "none"), code=4)
    assert "cluster up" in error["message"]
    assert not (tmp_path / "none").exists()


def test_no_maven_ends_the_command_with_a_remedy(tmp_path):
    cli = Cli(tmp_path)
    words = ("cluster", "up", "--folder", str(tmp_path / "c"))
    nothing = {"EVERLOG_CACHE": str(tmp_path / "cache"), "EVERLOG_MVN": "no-such-program"}
    error = cli.error(*words, code=1, JAVA_HOME=java_home(tmp_path / "java", "17.0.1"), **nothing)
    assert error["type"] == "MissingProgram"
    assert "install maven" in error["message"]


def test_asking_an_absent_cluster_changes_nothing(tmp_path):
    absent = LocalCluster(tmp_path / "absent")
    assert not absent.exists
    assert absent.down() == 0
    assert absent.status() == []
    with pytest.raises(InvalidConfig, match="there are none"):
        absent.server("kafka-1")
    assert not absent.folder.exists()
