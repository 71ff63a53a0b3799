"""From an FX graph to a program: the backend of torch.compile and its stages."""
