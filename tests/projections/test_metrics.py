"""Counters for Prometheus."""

from __future__ import annotations

from everlog.projections.observers import ProjectionMetrics
from everlog.projections.projection_id import ProjectionId
from everlog.projections.strategies import at_least_once
from tests.models.projection_fixture import QUICK, Joined, Six, declare, run_to_end
from tests.projections.test_runs import virtually


@virtually
async def test_what_is_counted(store):
    """A failure once at 4 with windows of two: 3 handled, then 4 of which one again."""
    metrics = ProjectionMetrics(now=lambda: 1010.0)
    source = Six(extract_creation_time=lambda one: 1_000_000 + one.offset * 1000)
    strategy = at_least_once(save_every=2)
    await run_to_end(declare(Joined(fail_at=4), source, strategy=strategy, restart=QUICK, observers=[metrics]), store)
    lines = metrics.text().splitlines()
    labels = '{name="words",key="all"}'
    for name, count in (("handled", 7), ("errors", 1), ("stored", 6), ("failures", 1), ("starts", 2)):
        assert f"everlog_projection_{name}_total{labels} {count}" in lines
    assert f"everlog_projection_age_seconds{labels} 4.000" in lines
    assert sum(line.startswith("# TYPE") for line in lines) == 6


def test_labels_are_escaped():
    metrics = ProjectionMetrics()
    metrics.started(ProjectionId('a"b\\c', "line\nbreak"))
    assert 'name="a\\"b\\\\c",key="line\\nbreak"' in metrics.text()
