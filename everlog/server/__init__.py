"""The HTTP server: routes, security, OpenAPI, metrics."""
