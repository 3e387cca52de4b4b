"""The paper's tables and figures, run again: what to run, running it, what came of it, and the numbers side by side."""
