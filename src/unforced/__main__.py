"""``python -m unforced`` is the command line."""

import sys

from unforced.cli import main

sys.exit(main())
