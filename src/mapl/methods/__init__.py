"""Methods, one per file: what a client minimises, what it shares, and what it does with the letters it reads."""
