"""The pipeline: Spark folds the log into the store, and publishes how far it is."""
