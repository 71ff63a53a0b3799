"""Converter files written for the torchair inside torch_npu: what lets them register and run."""
