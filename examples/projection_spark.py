"""Sales by shop: Spark adds up what carries a tag, batch by batch; sums and offset are stored together.

everlog replicate --projections examples.projection_spark:app      (or: python examples/projection_spark.py [folder])
"""

from __future__ import annotations

import sys
import tempfile
from typing import TYPE_CHECKING, Any

import everlog
from everlog import Event, on_spark, projection, tag

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

TABLE = "CREATE TABLE IF NOT EXISTS sales (shop TEXT PRIMARY KEY, events INTEGER NOT NULL, cents INTEGER NOT NULL)"
ADD = (
    "INSERT INTO sales VALUES (?1, ?2, ?3) "
    "ON CONFLICT (shop) DO UPDATE SET events = events + excluded.events, cents = cents + excluded.cents"
)


@projection("sales", source=tag("sale"), strategy=on_spark(), tables=["sales"])
def app(events: DataFrame, view: Any) -> None:
    """A batch of events in, a few rows out. Spark works first: the transaction begins with the first statement."""
    from pyspark.sql import functions

    sales = events.selectExpr("id", "cast(get_json_object(payload, '$.cents') as long) AS cents")
    sums = sales.groupBy("id").agg(functions.count("*"), functions.sum("cents"))
    for shop, count, total in sums.collect():
        view.execute(ADD, shop, count, total)


def main(folder: str) -> None:
    from everlog.pipeline.replicator import Replicator
    from everlog.projections.spark.runner import SparkProjections

    with everlog.sync.connect(folder) as log:
        log.projections.execute("sales", TABLE)
        shops = log.journal("shops")
        for number in range(300):
            token = shops.append(f"shop-{number % 3}", Event({"cents": number}, tags={"sale"}))
        pipeline = Replicator(everlog.load_config(folder))
        pipeline.start()
        heavy = SparkProjections(everlog.load_config(folder), [app], session=pipeline.session)
        heavy.start()
        try:
            log.projections.wait("sales", token, seconds=180)  # the first batch of a new session takes long
            rows = log.projections.fetch("sales", "SELECT * FROM sales ORDER BY shop")
        finally:
            heavy.stop()
            pipeline.stop()
        for shop, events, cents in rows:
            print(f"{shop}: {events} sales, {cents} cents")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        main(sys.argv[1] if len(sys.argv) > 1 else temporary)
