"""Serve models over HTTP: the engine that continues texts, the API, and the page."""
