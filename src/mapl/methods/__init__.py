"""Methods: one a file. What a client minimises, what it is willing to share, and what it does with what it hears."""
