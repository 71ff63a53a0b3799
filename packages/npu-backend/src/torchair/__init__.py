"""PyTorch on Ascend NPUs in graph mode: torch.compile backend, configuration, FX passes, scopes."""
