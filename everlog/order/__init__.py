"""The order of all tagged events: their offsets, the plans that decide them, and where rows go. Pure."""
