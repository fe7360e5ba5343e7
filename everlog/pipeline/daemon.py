"""The process that Spark forks the pipeline's Python workers from.

It has imported what every task needs, so no worker does that again: the first cycle starts sooner, and the workers
share that memory. Nothing is opened here: clients are made after the fork.
"""

import pyspark.worker  # noqa: F401
from pyspark.daemon import manager

import everlog.pipeline.task  # noqa: F401

if __name__ == "__main__":
    manager()
