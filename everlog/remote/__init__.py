"""The API over HTTP: the objects behind `connect("http://…")`."""
