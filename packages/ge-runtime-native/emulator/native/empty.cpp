// A library that must exist and holds nothing.
