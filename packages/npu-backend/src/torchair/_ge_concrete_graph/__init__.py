"""Import path of existing scripts and of graph dumps in Python form."""
