"""The built-in converters, a module for each topic; each registers itself when it is imported."""
