"""Views of events by tag: read now or live, in one order; rebuild and verify them."""
