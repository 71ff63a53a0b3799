"""Offline GE graphs: archive format, export, save_graph and load_graph. All that a deployment host installs."""
