"""What converters share: compute types, arithmetic, sizes as operands, windows. Nothing here is registered."""
