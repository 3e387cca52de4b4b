"""Data sets, one per file; each is a `DataSource`."""
