"""What programs use of the torchair inside torch_npu, and what it is here."""
