"""``python -m unforced`` is the command line."""

import sys

from unforced.cli import main

if __name__ == "__main__":
    sys.exit(main())
