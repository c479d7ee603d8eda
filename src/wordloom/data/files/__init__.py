"""Files and rows of bytes: sources, streams, tables, Parquet."""
