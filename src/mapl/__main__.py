"""`python -m mapl` is the command line."""

import sys

try:
    from mapl.cli import main
except KeyboardInterrupt:
    sys.exit(130)

main()
