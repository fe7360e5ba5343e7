"""`python -m everlog.cli`, where the script `everlog` is not on the path."""

from everlog.cli.main import main

main()
