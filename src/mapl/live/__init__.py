"""The page on which one sees runs happen: what it is told about a run, and the small server that tells it."""
