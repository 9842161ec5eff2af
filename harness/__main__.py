"""`python -m harness` is the `ropewalk` command."""

import sys

from harness.cli import main

sys.exit(main())
