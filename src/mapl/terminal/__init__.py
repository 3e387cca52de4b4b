"""What commands share: progress, Ctrl-C, warnings and errors, and options that several of them take."""
