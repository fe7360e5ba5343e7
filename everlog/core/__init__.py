"""Values, actions, events and the fold: pure functions and small types, without storage, threads or a clock."""
