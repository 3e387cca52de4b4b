"""`python -m mapl` is the command line."""

from mapl.cli import main

main()
