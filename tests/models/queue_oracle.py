"""A queue as simple as it can be written: a list of dictionaries, walked from end to end for every question.

It was written from the table of states, not from the engine, so that the two can disagree.
"""

from __future__ import annotations

from typing import Any

from everlog.config.queue_options import QueueSettings
from everlog.queues.operations import (
    Cancel,
    Claim,
    Done,
    Fail,
    Heartbeat,
    Operation,
    Pause,
    Put,
    Release,
    Sweep,
)

Entry = dict[str, Any]


class Oracle:
    """Answers what a queue must answer; rows by key, token and data instead of entry ids.

    `sweeps`: whether a claim turns over what is overdue first.
    """

    def __init__(self, settings: QueueSettings, *, sweeps: bool = True) -> None:
        self.settings = settings
        self.sweeps = sweeps
        self.rows: list[Entry] = []
        self.dead: list[Entry] = []
        self.flags: dict[str, int] = {}
        self.paused = False
        self.starts: list[int] = []
        self.group_starts: list[tuple[int, str]] = []
        # The groups that have started, the last one at the end.
        self.turns: list[str] = []
        self._serial = 0

    def apply(self, operation: Operation, now: int, row: Entry | None = None) -> Any:
        """`row`: the one that a handle names, None if it names none that is still held."""
        match operation:
            case Put(packet):
                return self.put(packet, now)
            case Claim(_, limit, lease_ms, fast_only):
                return self.claim(operation.owner, limit, lease_ms, fast_only, now)
            case Heartbeat() if row:
                row["start"] = now
                return row["stop"]
            case Done() if row:
                self.finish(row, now)
            case Fail() if row:
                self.end(row, now, "failed", operation.delay_ms, operation.retry)
            case Release() if row:
                self.give_back(row, now, operation.delay_ms or 0, operation.flag)
            case Heartbeat() | Done() | Fail() | Release():
                return "LEASE_LOST"
            case Cancel():
                return self.cancel(operation.key, now)
            case Pause():
                self.paused = operation.paused
            case Sweep():
                self.sweep(now)
        return "OK"

    def get(self, key: bytes, now: int) -> list[Entry]:
        return [row for row in self.rows if row["key"] == key and not self.expired(row, now)]

    def expired(self, image: Entry, now: int) -> bool:
        return image["expires"] > 0 and now > image["expires"] * 1000

    def overdue(self, row: Entry, now: int) -> bool:
        return row["status"] == "P" and now - row["start"] > row["lease"]

    def put(self, packet: Any, now: int) -> str:
        inserted = packet.inserted_ms
        if inserted > now + self.settings.clock_tolerance_ms:
            inserted = now
            self.flags["clock_skew"] = self.flags.get("clock_skew", 0) + 1
        process = max(inserted, packet.process_ms or 0)
        if self.settings.max_wait_ms:
            process = min(process, inserted + self.settings.max_wait_ms)
        image = {
            "priority": packet.priority,
            "process": process,
            "inserted": inserted,
            "expires": packet.expires_s,
            "date": inserted,
            "data": packet.data,
            "group": packet.group,
        }
        if not self.settings.merge:
            return self.create(packet.key, packet.hash, image)
        for row in list(self.rows):
            if row["key"] == packet.key:
                if self.overdue(row, now):
                    self.end(row, now, "timeout")
                elif row["status"] == "W" and self.expired(row, now):
                    self.rows.remove(row)
        mine = [row for row in self.rows if row["key"] == packet.key]
        for row in mine:
            if row["status"] == "W":
                if self.settings.late_packets == "ignore" and image["date"] < row["date"]:
                    return "IGNORED_LATE"
                self.merge(row, image)
                row["timeouts"] = 0
                return "MERGED"
        if not mine or self.settings.on_busy == "parallel":
            return self.create(packet.key, packet.hash, image)
        return self.put_busy(mine[0], image, now)

    def put_busy(self, row: Entry, image: Entry, now: int) -> str:
        if self.settings.on_busy in ("reject", "drop"):
            return {"reject": "REJECTED", "drop": "DROPPED"}[self.settings.on_busy]
        slot = row["slot"]
        if slot is not None and self.expired(slot, now):
            slot = None
        if self.settings.late_packets == "ignore" and image["date"] < (slot or row)["date"]:
            return "IGNORED_LATE"
        if self.settings.on_busy == "restart" and not row["stop"]:
            row["stop"] = "restart"
        if slot is None:
            row["slot"] = dict(image)
            if image["date"] < row["date"] and row["stop"] != "cancel" and not self.expired(row, now):
                row["slot"].update(date=row["date"], data=row["data"], group=row["group"])
            return "SUCCESSOR"
        self.merge(slot, image)
        return "SUCCESSOR_MERGED"

    def merge(self, held: Entry, image: Entry) -> None:
        held["priority"] = min(held["priority"], image["priority"])
        wanted = image["process"]
        if self.settings.max_wait_ms:
            wanted = min(wanted, held["inserted"] + self.settings.max_wait_ms)
        held["process"] = max(held["process"], wanted)
        both = held["expires"] and image["expires"]
        held["expires"] = max(held["expires"], image["expires"]) if both else 0
        if image["date"] >= held["date"]:
            held["date"], held["data"], held["group"] = image["date"], image["data"], image["group"]

    def create(self, key: bytes, key_hash: bytes, image: Entry) -> str:
        self._serial += 1
        state = {"status": "W", "start": None, "lease": 0, "timeouts": 0, "lifetime": 0, "token": 0}
        self.rows.append(
            {**image, **state, "key": key, "hash": key_hash, "serial": self._serial, "slot": None, "stop": None}
        )
        return "CREATED"

    def order(self, row: Entry) -> tuple[Any, ...]:
        return row["priority"], row["process"], row["hash"], row["serial"]

    def waiting(self, now: int) -> list[Entry]:
        return sorted((row for row in self.rows if row["status"] == "W" and not self.expired(row, now)), key=self.order)

    def claimable(self, now: int) -> list[Entry]:
        return [row for row in self.waiting(now) if row["process"] <= now]

    def claim(self, owner: str, limit: int, lease_ms: int | None, fast_only: bool, now: int) -> list[Entry]:
        if self.sweeps:
            self.sweep(now)
        if self.paused:
            return []
        lease = min(lease_ms or self.settings.processing_timeout_ms, self.settings.max_processing_timeout_ms)
        if self.settings.max_in_flight is not None:
            limit = min(limit, self.settings.max_in_flight - sum(row["status"] == "P" for row in self.rows))
        rate = self.settings.rate_limit
        if rate is not None:
            limit = min(limit, rate.count - sum(at > now - rate.window_ms for at in self.starts))
        shared = any(row["status"] == "W" and row["group"] for row in self.rows)
        taken: list[Entry] = []
        while len(taken) < limit and (free := self.free_rows(taken, fast_only, now)):
            row = min(free, key=lambda row: self.turn_order(row, now))
            slow = self.settings.slow_threshold is not None and row["priority"] >= self.settings.slow_threshold
            fast_only = fast_only or (self.settings.slow_threshold is not None and not slow)
            taken.append(row)
            row.update(status="P", start=now, lease=lease, token=row["token"] + 1, owner=owner, stop=None)
            if shared:
                self.turns = [group for group in self.turns if group != row["group"]] + [row["group"]]
        if taken and rate is not None:  # what has left the window is forgotten, even if the clock goes back
            self.starts = [at for at in self.starts if at > now - rate.window_ms] + [now] * len(taken)
        rate = self.settings.rate_limit_per_group
        if any(row["group"] for row in taken) and rate is not None:
            kept = [(at, group) for at, group in self.group_starts if at > now - rate.window_ms]
            self.group_starts = kept + [(now, row["group"]) for row in taken]
        return taken

    def turn_order(self, row: Entry, now: int) -> tuple[Any, ...]:
        """More urgent, then a group that started earlier, or never, then as ever."""
        priority, group = row["priority"], row["group"]
        if self.settings.aging_ms and now > row["process"]:
            priority = max(0, priority - (now - row["process"]) // self.settings.aging_ms)
        turn = self.turns.index(group) + 1 if group in self.turns else 0
        return priority, turn, *self.order(row)[1:]

    def free_rows(self, taken: list[Entry], fast_only: bool, now: int) -> list[Entry]:
        """What could be the next one, after those that are taken."""
        slow, most = self.settings.slow_threshold, self.settings.max_in_flight_per_group
        rate = self.settings.rate_limit_per_group
        found = []
        for row in self.claimable(now):
            group = row["group"]
            running = sum(other["status"] == "P" and other["group"] == group for other in self.rows)
            started = sum(other["group"] == group for other in taken)
            if rate is not None:
                started += sum(other == group and at > now - rate.window_ms for at, other in self.group_starts)
            blocked = (most is not None and running >= most) or (rate is not None and started >= rate.count)
            if not (group and blocked) and not (slow is not None and fast_only and row["priority"] >= slow):
                found.append(row)
        return found

    def sweep(self, now: int) -> None:
        for row in list(self.rows):
            if self.overdue(row, now):
                self.end(row, now, "timeout")
        self.rows = [row for row in self.rows if not (row["status"] == "W" and self.expired(row, now))]

    def seen(self, now: int) -> Oracle:
        """Another oracle, with the rows that a sweep would leave, if it had come when each lease ended.

        What it would bury without a successor waits still.
        """
        other = self.copy()
        for row in list(other.rows):
            if other.overdue(row, now):
                other.end(row, now, "timeout", since=row["start"] + row["lease"] + 1)
        for letter in other.dead:
            if not any(row["key"] == letter["key"] and row["serial"] > self._serial for row in other.rows):
                other.rows.append({name: letter[name] for name in letter if name != "cause"})
                other.to_waiting(other.rows[-1])
        other.sweep(now)
        return other

    def copy(self) -> Oracle:
        """Another oracle; dead letters, which become many, are not copied."""
        other = Oracle(self.settings, sweeps=self.sweeps)
        other.rows = [dict(row, slot=row["slot"] and dict(row["slot"])) for row in self.rows]
        other.paused, other._serial = self.paused, self._serial
        other.starts, other.group_starts, other.turns = [*self.starts], [*self.group_starts], [*self.turns]
        return other

    def finish(self, row: Entry, now: int) -> None:
        slot = row["slot"]
        if slot is None or self.expired(slot, now):
            self.rows.remove(row)
        else:
            row.update(slot, timeouts=0)
            self.to_waiting(row)

    def to_waiting(self, row: Entry) -> None:
        row.update(status="W", start=None, lease=0, slot=None, stop=None)

    def end(
        self, row: Entry, now: int, how: str, delay: int | None = None, retry: bool = True, *, since: int | None = None
    ) -> None:
        row["timeouts"] = min(255, row["timeouts"] + 1)
        row["lifetime"] += 1
        if row["lifetime"] >= self.settings.lifetime_timeouts:
            self.flags["lifetime_timeouts"] = self.flags.get("lifetime_timeouts", 0) + 1
        if self.ended_for_good(row, now):
            return
        if row["timeouts"] >= self.settings.max_timeouts or not retry:
            reason = "max_timeouts" if how == "timeout" else "failed"
            self.flags[reason] = self.flags.get(reason, 0) + 1
            self.dead.append(dict(row, cause=reason))
            self.leave(row, now)
            return
        pause = delay
        if pause is None:
            pause = 0
            if self.settings.retry_backoff_ms:
                pause = min(
                    self.settings.retry_backoff_ms * 2 ** (row["timeouts"] - 1), self.settings.max_retry_backoff_ms
                )
        start = now if since is None else since
        if not self.merge_slot(row, now, start + pause if pause else 0) and (pause or how == "failed"):
            row["process"] = start + pause
        self.to_waiting(row)

    def give_back(self, row: Entry, now: int, delay: int, flag: str | None) -> None:
        if not self.ended_for_good(row, now):
            if flag is not None:
                self.flags[flag] = self.flags.get(flag, 0) + 1
            if not self.merge_slot(row, now, now + delay if delay else 0) and delay:
                row["process"] = max(row["process"], now + delay)
            self.to_waiting(row)

    def merge_slot(self, row: Entry, now: int, not_before: int) -> bool:
        slot = row["slot"]
        if slot is None or self.expired(slot, now):
            return False
        process = max(row["process"], slot["process"], not_before)
        self.merge(row, slot)
        row["process"] = process
        row["timeouts"] = 0
        return True

    def ended_for_good(self, row: Entry, now: int) -> bool:
        if row["stop"] == "cancel":
            self.dead.append(dict(row, cause="cancelled"))
        elif not self.expired(row, now):
            return False
        self.leave(row, now)
        return True

    def leave(self, row: Entry, now: int) -> None:
        """The row goes; a successor that is alive gets a row of its own."""
        self.rows.remove(row)
        if row["slot"] is not None and not self.expired(row["slot"], now):
            self.create(row["key"], row["hash"], row["slot"])

    def cancel(self, key: bytes, now: int) -> int:
        for row in list(self.rows):
            if row["key"] == key and self.overdue(row, now):
                self.end(row, now, "timeout")
        mine = [row for row in self.rows if row["key"] == key]
        count = 0
        for row in mine:
            if row["status"] == "P":
                row.update(stop="cancel", slot=None)
            else:
                self.rows.remove(row)
                if self.expired(row, now):
                    continue
                self.dead.append(dict(row, cause="cancelled"))
            count += 1
        return count
