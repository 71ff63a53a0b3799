"""The few names of pyACL that programs import beside torch_npu. Run under ``tair emulate``."""

import acl
import pytest
import torch
import torch_npu


def test_memory_of_tensors():
    a, b = torch.arange(6.0).npu(), torch.zeros(6).npu()
    size = a.numel() * a.element_size()
    assert acl.rt.memcpy(b.data_ptr(), size, a.data_ptr(), size, 3) == 0  # from device to device
    assert b.cpu().tolist() == [0, 1, 2, 3, 4, 5]
    assert acl.rt.memset(b.data_ptr(), size, 0, size) == 0
    assert acl.rt.synchronize_device() == 0
    assert b.cpu().tolist() == [0] * 6


def test_results_come_before_the_code():
    torch.zeros(1).npu()
    pointer, code = acl.rt.malloc(256, 0)
    assert (bool(pointer), code, acl.rt.free(pointer)) == (True, 0, 0)
    assert acl.rt.get_device() == (torch_npu.npu.current_device(), 0)
    assert acl.rt.get_device_count() == (torch_npu.npu.device_count(), 0)
    free, total, code = acl.rt.get_mem_info(1)
    assert 0 < free <= total
    assert code == 0
    assert acl.get_soc_name() == torch_npu.npu.get_device_name(0)


def test_wrong_calls():
    with pytest.raises(TypeError, match="memcpy takes 5 arguments, got 1"):
        acl.rt.memcpy(0)
    assert acl.rt.memcpy(0, 8, 0, 8, 3) != 0
