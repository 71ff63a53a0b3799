"""Built-in converters, one module a family; the registry imports all of them on first use."""
