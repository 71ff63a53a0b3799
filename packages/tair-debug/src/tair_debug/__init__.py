"""See every stage of a compilation: support report, graph and tensor dumps, debug record, comparison."""
