"""`python -m emberline` is the `emberline` command."""

import sys

from emberline.cli import main

sys.exit(main())
