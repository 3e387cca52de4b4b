"""Data sets: one a file, each a `DataSource`."""
