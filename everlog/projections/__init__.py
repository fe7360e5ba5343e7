"""Projections: handlers turn events into views, with stored offsets, on one node or many, or on Spark."""
