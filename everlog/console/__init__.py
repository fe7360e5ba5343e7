"""The console: pages for operators, each with a JSON twin."""
