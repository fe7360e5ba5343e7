"""Settings that do not fit together are named before anything is read."""

from __future__ import annotations

import logging

import msgspec
import pytest

import everlog
from everlog.config import PekkoConfig, load_config
from everlog.errors import InvalidConfig, InvalidId, InvalidOffset, InvalidRange, InvalidTag, NotEnabled
from everlog.pekko.events import ResumePoint
from everlog.pekko.settings import StageSettings
from tests.pekko.support import World


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"back_track_interval": "off"}, "back_track_long_interval needs back_track_interval"),
        ({"back_track_interval": 120.0}, "must be shorter than back_track_long_interval"),
        ({"back_track_period": 6480.0}, "back_track_period must be shorter"),
        ({"back_track_long_period": 7000.0}, "back_track_long_period must be shorter"),
        ({"bucket_size": "Minute", "back_track_period": 110.0}, "back_track_period must be shorter"),
        ({"cleanup_old_persistence_ids": 5.0}, "back_track_period must be shorter"),
        ({"bucket_size": "Week"}, "bucket_size"),
        ({"first_time_bucket": "cats"}, "first_time_bucket"),
        ({"retry_attempts": 0}, "retry_attempts"),
        ({"retry_attempts": -2}, "retry_attempts"),
        ({"retry_min_backoff": 31.0}, "retry_min_backoff"),
        ({"eventual_consistency_delay": -1.0}, "eventual_consistency_delay"),
        ({"gap_timeout": "soon"}, "gap_timeout"),
        ({"page_size": 0}, "page_size"),
        ({"keyspace": "a; DROP"}, "keyspace"),
        ({"hold": "all"}, "hold"),
    ],
)
def test_settings_that_cannot_work_are_named(settings, named):
    with pytest.raises(InvalidConfig, match=named):
        StageSettings.of(PekkoConfig(**settings))


def test_the_defaults_are_the_originals():
    settings = StageSettings.of(PekkoConfig())
    assert (settings.delay_ms, settings.gap_timeout_ms, settings.new_id_timeout_ms, settings.refresh_ms) == (
        5000,
        10_000,
        0,
        3000,
    )
    assert (settings.short_interval_ms, settings.short_period_ms) == (1000, 5000)
    assert (settings.long_interval_ms, settings.long_period_ms) == (120_000, None)
    assert (settings.forget_after_ms, settings.offset_scan_ms, settings.max_missing) == (7_200_000, 200, 5000)
    assert settings.first_bucket == 1447977600000


def test_look_back_and_forgetting_may_be_off():
    off = StageSettings.of(PekkoConfig(back_track_interval="off", back_track_long_interval="off"))
    assert off.short_interval_ms is off.long_interval_ms is None
    settings = StageSettings.of(PekkoConfig(cleanup_old_persistence_ids="off", back_track_period=9000.0))
    assert settings.forget_after_ms is None


def test_they_come_from_the_file(tmp_path):
    file = tmp_path / "everlog.toml"
    file.write_text('[pekko]\nkeyspace = "pekko"\nback_track_long_period = 60\nhold = "journal"\n')
    found = load_config(file).pekko
    assert (found.keyspace, found.back_track_long_period, found.hold) == ("pekko", 60.0, "journal")
    file.write_text("[pekko]\ndelay = 5\n")
    with pytest.raises(InvalidConfig, match="delay"):
        load_config(file)


def test_what_is_unwise_is_said(caplog):
    caplog.set_level(logging.INFO)

    def said(**settings) -> list[tuple[str, str]]:
        caplog.clear()
        StageSettings.of(msgspec.structs.replace(PekkoConfig(), **settings)).warn()
        return [(record.levelname, record.getMessage().split()[1]) for record in caplog.records]

    assert said() == []
    assert said(eventual_consistency_delay=0.5) == [("WARNING", "eventual_consistency_delay")]
    assert said(eventual_consistency_delay=1.5) == [("INFO", "eventual_consistency_delay")]
    assert said(cleanup_old_persistence_ids=3600.0) == [("WARNING", "cleanup_old_persistence_ids")]
    assert said(bucket_size="Second", back_track_period=1.0) == [("WARNING", "bucket_size")]


@pytest.mark.case("tags-and-projections", 24)
def test_queries_of_what_is_not_kept_fail_at_once():
    """With the views, or the table of ids, off: the query itself raises, and nothing was read."""
    world = World()
    with pytest.raises(NotEnabled, match="enabled"):
        world.reader(enabled=False).tag("t")
    with pytest.raises(NotEnabled, match="support_all_persistence_ids"):
        world.reader(support_all_persistence_ids=False).persistence_ids()
    assert world.tables.asked == []


def test_bad_input_is_named_before_anything_is_read():
    world = World()
    reader = world.reader()
    for tag in ("", "x" * 1025, "é" * 513, None):
        with pytest.raises(InvalidTag):
            reader.tag(tag)
    with pytest.raises(InvalidOffset):
        reader.tag("t").live(after="a4698000-8f19-11e5-8080-808080808080")
    with pytest.raises(InvalidOffset):
        ResumePoint.parse("cats")
    with pytest.raises(InvalidOffset):
        ResumePoint.parse('{"after": 1}')
    with pytest.raises(InvalidRange):
        reader.events("p", 5, 4)
    with pytest.raises(InvalidId):
        reader.events("")
    assert world.tables.asked == []


async def test_a_folder_has_no_such_tables(tmp_path):
    async with everlog.connect(tmp_path) as log:
        with pytest.raises(InvalidConfig, match="cassandra"):
            await log.pekko()
