"""``python -m ge_emulator`` is ``tair emulate``."""

import sys

from ge_emulator.launch import main

sys.exit(main())
