"""Reads views and journals that Akka or Pekko Persistence writes."""
