"""The command ``python -m ge_converters.smoke``; see ``ge_converters.report.smoke``."""

from ge_converters.report.smoke import main

if __name__ == "__main__":
    raise SystemExit(main())
