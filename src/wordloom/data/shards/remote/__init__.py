"""Prepared tokens behind a URL, read by byte ranges through fsspec, with a cache on the local disk."""
