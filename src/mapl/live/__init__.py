"""The live page of runs: what it is told about a run, and the small server that tells it."""
