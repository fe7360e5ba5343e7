"""The Spark session of a driver, and what the tasks of one worker process share."""
