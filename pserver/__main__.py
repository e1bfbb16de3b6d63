"""``python -m pserver``: the same as the command ``pserver``."""

import sys

from pserver.cli.main import main

sys.exit(main())
