"""Views of events by tag."""
