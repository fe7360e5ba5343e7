"""The checker of queue histories: each rule catches a history that breaks it, and lets a good one pass."""

from __future__ import annotations

import json

import pytest

from tests.faults.queue_history import QueueLimits, check, load

LEASE = 100
T = 1_000_000


class Story:
    """A history by hand. Times are milliseconds after T; an operation lasts two, unless `end` says otherwise."""

    def __init__(self, **limits):
        self.operations = []
        self.limits = QueueLimits(**limits)

    def add(self, op, start, *, end=None, outcome="ok", **fields):
        ended = None if outcome == "unknown" else T + (start + 2 if end is None else end)
        number = f"p-{len(self.operations)}"
        basic = {"id": number, "process": "p", "queue": "q", "op": op, "start": T + start, "end": ended}
        self.operations.append({**basic, "outcome": outcome, **fields})
        return self

    def put(self, start, data, *, key="k", due=None, expires=0, entry=1, result="CREATED", inserted=None, **more):
        dates = {"inserted": T + (start if inserted is None else inserted), "due": T + (start if due is None else due)}
        return self.add("put", start, key=key, data=data, expires=expires, entry=entry, result=result, **dates, **more)

    def claim(self, at, data, *, key="k", handle=(1, 1), due=0, expires=0, dates=(0, 0), group=""):
        lease = {"entry": handle[0], "token": handle[1], "key": key, "data": data, "claimed": T + at}
        lease |= {"deadline": T + at + LEASE, "due": T + due, "expires": expires}
        lease |= {"inserted": T + dates[0], "dated": T + dates[1], "group": group}
        return self.add("claim", at - 1, end=at + 1, leases=[lease])

    def end(self, op, start, handle=(1, 1), **more):
        return self.add(op, start, entry=handle[0], token=handle[1], **more)

    def count(self, start, *, waiting=(), running=(), dead=(), said=()):
        told = {"ready": len(waiting), "delayed": 0, "running": len(running), "dead": len(dead), **dict(said)}
        rows = {"waiting": list(waiting), "running": list(running), "dead": list(dead)}
        return self.add("count", start, stats=told, **rows)

    def schedule(self, *, catch_up, until):
        self.add("set", -10, end=-5, name="tick", every=100, catch_up=catch_up)
        return self.add("pause", until, name="tick")

    @property
    def found(self):
        return sorted({finding.rule for finding in check(self.operations, {"q": self.limits})})


def row(data, *, key="k", entry=1, **more):
    return {"key": key, "data": data, "entry": entry, **more}


def test_a_good_history():
    """Merged, failed, lost to another worker, done; a successor, and a dead letter."""
    story = Story(max_in_flight=2, rate=(2, 50))
    story.put(0, "a").put(5, "b", result="MERGED").claim(10, "b").end("heartbeat", 60).end("fail", 100)
    story.claim(110, "b", handle=(1, 2)).put(120, "c", result="SUCCESSOR")  # its worker is stopped for long
    story.claim(300, "c", handle=(1, 3)).end("done", 305, (1, 2), outcome="fail").end("done", 320, (1, 3))
    story.put(400, "d", key="k2", entry=2).claim(410, "d", key="k2", handle=(2, 1)).end("fail", 420, (2, 1))
    story.count(500, dead=[row("d", key="k2", entry=2, cause="failed", reason="on purpose")])
    assert story.found == []


def test_a_late_put_may_come_after_newer_data_that_are_done():
    """It was stopped on its way; what it met was gone. Data that were stored before count as ever."""
    late = {"inserted": 0, "entry": 2}
    story = Story().put(5, "new").claim(10, "new").end("done", 20)
    story.put(0, "old", end=40, **late).claim(50, "old", handle=(2, 1)).end("done", 60, (2, 1))
    assert story.found == []
    story = Story().put(5, "new").claim(10, "new").end("done", 20)
    story.put(0, "old", end=8, **late).claim(50, "old", handle=(2, 1)).end("done", 60, (2, 1))
    assert story.found == ["stale"]


def test_a_late_put_behind_newer_data_that_run_lets_them_run_again():
    """Its own would be older than what was done last."""

    def story(came: int) -> Story:
        return Story().put(5, "new").claim(10, "new").put(came, "old", inserted=0, result="SUCCESSOR").end("done", 30)

    assert story(20).claim(50, "new", handle=(1, 2)).end("done", 60, (1, 2)).found == []
    assert story(20).claim(50, "old", handle=(1, 2)).end("done", 60, (1, 2)).found == ["stale"]
    assert "again" in story(40).claim(50, "new", handle=(1, 2)).end("done", 60, (1, 2)).found


def test_each_group_has_limits_of_its_own():
    """Jobs without a group have none."""
    story = Story(max_in_flight=4, max_in_flight_per_group=1, rate_per_group=(1, 50))
    for number, group in enumerate(("g", "h", "", "")):
        key, handle = f"k{number}", (number, 1)
        story.put(0, f"d{number}", key=key).claim(10, f"d{number}", key=key, handle=handle, group=group)
        story.end("done", 30, handle)
    story.put(0, "e", key="e").claim(60, "e", key="e", handle=(9, 1), group="g").end("done", 70, (9, 1))
    assert story.found == []


def test_a_successor_that_expired_leaves_the_older_data():
    for expires, found in ((0, ["stale"]), (T + 300, ["stale"]), (T + 150, [])):
        story = Story().put(0, "a").claim(10, "a")  # its worker dies
        story.put(20, "b", result="SUCCESSOR", expires=expires).claim(200, "a", handle=(1, 2)).end("done", 210, (1, 2))
        assert [rule for rule in story.found if rule == "stale"] == found


def test_one_that_ends_in_the_millisecond_of_the_next_claim_leaves_it_room():
    story = Story(max_in_flight=1)
    story.put(0, "a", key="k1").claim(10, "a", key="k1", handle=(1, 1)).end("done", 30, (1, 1))
    story.put(0, "b", key="k2", entry=2).claim(10, "b", key="k2", handle=(2, 1)).end("done", 10, (2, 1))
    assert story.found == []


def test_nothing_at_all():
    assert Story().found == []


BAD = {
    "a put that is nowhere": (["lost"], Story().put(0, "a").count(50)),
    "a successor that is nowhere": (
        ["lost"],
        Story().put(0, "a").claim(10, "a").put(20, "b", result="SUCCESSOR").end("done", 30).count(50),
    ),
    "claimed and never done": (["lost"], Story().put(0, "a").claim(10, "a").end("fail", 20).count(50)),
    "done under a handle that was lost only": (
        ["lost"],
        Story().put(0, "a").claim(10, "a").end("done", 200, outcome="fail").count(250),
    ),
    "only older data wait": (
        ["lost"],
        Story().put(0, "a").put(10, "b", result="MERGED").count(50, waiting=[row("a")]),
    ),
    "a dead letter without a reason": (
        ["lost"],
        Story().put(0, "a").count(50, dead=[row("a", cause="failed", reason=None)]),
    ),
    "a handle that is given twice": (
        ["handle"],
        Story().put(0, "a").claim(10, "a").claim(300, "a").count(500, waiting=[row("a")]),
    ),
    "two runs under one handle": (
        ["handle"],
        Story().put(0, "a").claim(10, "a").end("run", 12).end("run", 20).end("done", 30).count(50),
    ),
    "an end without a claim": (["handle"], Story().end("done", 10, (7, 7))),
    "two valid handles": (
        ["twice"],
        Story().put(0, "a").claim(10, "a").claim(50, "a", handle=(1, 2)).end("done", 60, (1, 2)).count(200),
    ),
    "two entries of a key at once": (
        ["twice"],
        Story().put(0, "a").claim(10, "a").claim(50, "a", handle=(2, 1)).end("done", 60, (2, 1)).count(200),
    ),
    "a heartbeat does not count": (
        ["twice"],
        Story().put(0, "a").claim(10, "a").end("heartbeat", 90).claim(150, "a", handle=(1, 2)).end("done", 160, (1, 2)),
    ),
    "done under a handle that was lost": (
        ["fence"],
        Story().put(0, "a").claim(10, "a").claim(200, "a", handle=(1, 2)).end("done", 210).count(250),
    ),
    "a heartbeat of a handle that was lost": (
        ["fence", "twice"],
        Story()
        .put(0, "a")
        .claim(10, "a")
        .claim(200, "a", handle=(1, 2))
        .end("heartbeat", 210)
        .end("done", 220, (1, 2)),
    ),
    "old data": (
        ["stale"],
        Story()
        .put(0, "a")
        .put(10, "b", result="MERGED")
        .claim(20, "a")
        .end("release", 30)
        .count(50, waiting=[row("b")]),
    ),
    "data that no put had": (["phantom"], Story().put(0, "a").claim(10, "x").count(50, waiting=[row("a")])),
    "data of a put that was refused": (
        ["phantom"],
        Story().put(0, "a", outcome="fail", result="REJECTED").claim(10, "a").end("done", 20),
    ),
    "data of another key": (
        ["phantom"],
        Story().put(0, "a", key="k2").claim(10, "a").end("done", 20).count(50, waiting=[row("a", key="k2")]),
    ),
    "done and back": (
        ["again"],
        Story().put(0, "a").claim(10, "a").end("done", 20).claim(30, "a", handle=(2, 1)).end("done", 40, (2, 1)),
    ),
    "before its date": (["early"], Story().put(0, "a", due=50).claim(40, "a").end("done", 60).count(80)),
    "before the date that was merged into it": (
        ["early"],
        Story().put(0, "b").put(3, "a", due=50, result="MERGED", inserted=-5).claim(40, "b").end("done", 60).count(80),
    ),
    "before the date of its row": (["early"], Story().put(0, "a").claim(40, "a", due=50).end("done", 60).count(80)),
    "after it has expired": (["late"], Story().put(0, "a", expires=T + 30).claim(40, "a", expires=T + 30)),
    "too many at once": (
        ["in flight"],
        Story(max_in_flight=1)
        .put(0, "a")
        .put(0, "b", key="k2")
        .claim(10, "a")
        .claim(50, "b", key="k2", handle=(2, 1))
        .end("done", 60)
        .end("done", 60, (2, 1)),
    ),
    "too many of a group at once": (
        ["group in flight"],
        Story(max_in_flight=2, max_in_flight_per_group=1)
        .put(0, "a")
        .put(0, "b", key="k2")
        .claim(10, "a", group="g")
        .claim(50, "b", key="k2", handle=(2, 1), group="g")
        .end("done", 60)
        .end("done", 60, (2, 1)),
    ),
    "too many starts of a group": (
        ["group rate"],
        Story(rate=(2, 50), rate_per_group=(1, 50))
        .put(0, "a")
        .put(0, "b", key="k2")
        .claim(10, "a", group="g")
        .end("done", 30)
        .claim(59, "b", key="k2", handle=(2, 1), group="g")
        .end("done", 70, (2, 1)),
    ),
    "too many starts": (
        ["rate"],
        Story(rate=(1, 50))
        .put(0, "a")
        .put(0, "b", key="k2")
        .claim(10, "a")
        .end("done", 20)
        .claim(59, "b", key="k2", handle=(2, 1))
        .end("done", 60, (2, 1)),
    ),
    "stats that are not true": (["count"], Story().put(0, "a").count(50, waiting=[row("a")], said={"ready": 2})),
    "a dead letter that is not counted": (
        ["count"],
        Story().put(0, "a").count(50, dead=[row("a", cause="failed", reason="x")], said={"dead": 0}),
    ),
    "two rows of a key": (["count"], Story().put(0, "a").count(50, waiting=[row("a"), row("a", entry=2)])),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_history_is_caught(name):
    expected, story = BAD[name]
    assert story.found == expected


def test_what_is_unknown_counts_for_the_queue():
    """A put, a done and a claim that a killed process did not hear of may have happened, or not."""
    story = (
        Story()
        .put(0, "a")
        .put(5, "b", outcome="unknown", result=None)
        .claim(10, "a")
        .end("done", 20, outcome="unknown")
    )
    story.claim(30, "b", handle=(2, 1)).end("done", 40, (2, 1))
    assert story.count(50).found == []


def key_of(time):
    return f"tick@1970-01-01T00:{(T + time) // 60_000:02}:{(T + time) % 60_000 / 1000:06.3f}Z"


def ticks(*times, done=True):
    """Runs of a schedule whose times have keys of their own."""
    story = Story().schedule(catch_up="all", until=350)
    for number, time in enumerate(times, 1):
        story.claim(400 + 10 * number, "n", key=key_of(time), handle=(number, 1), due=time, dates=(time, time))
        if done:
            story.end("done", 405 + 10 * number, (number, 1))
    return story


def test_all_times_of_a_schedule():
    assert ticks(0, 100, 200, 300).found == []
    assert ticks(0, 100, 200).count(600, waiting=[row("n", key=key_of(300))]).found == []
    assert ticks(0, 100, 300).found == ["missed"]
    assert ticks(0, 100, 150, 200, 300).found == ["schedule"]
    assert ticks(0, 100, 200, 200, 300).found == ["fired twice"]
    assert ticks(0, 100, 200, 300, 300, done=False).found == ["twice"]


def merged(*spans, until=350):
    """Runs of a schedule with one key: each has the times of a span."""
    story = Story().schedule(catch_up="one", until=until)
    for number, (first, last) in enumerate(spans, 1):
        story.claim(last + 10, "n", key="tick", handle=(number, 1), due=last, dates=(first, last))
        story.end("done", last + 20, (number, 1))
    return story


def test_times_of_a_schedule_that_merge():
    assert merged((0, 0), (100, 200), (300, 300)).found == []
    assert merged((0, 0), (200, 300)).found == [], "a time that was missed is in the next run"
    assert merged((0, 0), (100, 200)).found == ["missed"]
    story = merged((0, 0), (100, 200))
    story.limits = QueueLimits(refuses_busy=True)
    assert story.found == [], "a time that finds its key busy is refused there"
    assert merged((0, 100), (100, 300)).found == ["fired twice"]
    assert merged((0, 100), (200, 350)).found == ["schedule"]


def test_a_finding_shows_the_operations_of_its_key():
    story = Story().put(0, "a").put(0, "other", key="k2").claim(10, "a").count(50)
    (finding, _) = check(story.operations, {"q": QueueLimits()})
    assert str(finding).splitlines()[0] == "lost: q, 'k': a was acknowledged, and neither done nor there"
    assert [json.loads(line)["op"] for line in str(finding).splitlines()[1:]] == ["put", "claim"]


def test_a_killed_process_leaves_what_it_began(tmp_path):
    """Its last line may be cut off."""
    file = tmp_path / "p.jsonl"
    began = [{"id": f"p-{number}", "op": "put", "start": number} for number in (1, 2)]
    ended = {"id": "p-1", "end": 5, "outcome": "ok"}
    file.write_text("".join(json.dumps(one) + "\n" for one in (*began, ended)) + '{"id": "p-2", "end"')
    assert load([file]) == [{**began[0], **ended}, {**began[1], "end": None, "outcome": "unknown"}]
