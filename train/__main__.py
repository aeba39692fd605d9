"""`python -m emberline.train` (and `torchrun -m emberline.train`): the same as `emberline train`."""

import sys

from emberline.cli import main

if __name__ == "__main__":
    sys.exit(main(["train", *sys.argv[1:]]))
