"""The name of older test instructions: every declared form of every converter, or of those with a given prefix."""

import sys

from ge_converters.smoke import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
