"""Models as files for programs without torch."""
