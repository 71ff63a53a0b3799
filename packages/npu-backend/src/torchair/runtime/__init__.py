"""What runs a compiled graph: programs, views of results, captured device graphs."""
