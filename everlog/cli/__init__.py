"""The command line: one command, one call of the library."""
