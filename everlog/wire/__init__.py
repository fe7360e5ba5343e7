"""What the server and its clients send each other: events, errors and projection states as JSON."""
