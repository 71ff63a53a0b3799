"""FX to GE: the converter registry, the built-in converters and their proofs."""
