"""Import path of existing scripts: operators of torch_npu that have a converter here are known without this import."""
