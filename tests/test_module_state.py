"""What is done to a module that is compiled, or to what it holds: afterwards it computes what it computes in eager."""

import copy
import pickle
import threading

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.utils import parametrizations
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.testing import assert_close
from torch.testing._internal.two_tensor import TwoTensor

import torchair

BACKEND = torchair.get_npu_backend()


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.BatchNorm1d(6), nn.Linear(6, 2))


def plain():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.GELU(), nn.Linear(6, 2))


def compiled(module):
    return torch.compile(module, backend=BACKEND)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.double, torch.bfloat16, torch.half])
def test_another_type_after_compiling(dtype):
    module, x = plain(), torch.randn(5, 4)
    called = compiled(module)
    called(x)
    called.to(dtype)
    near = {} if dtype is torch.double else {"rtol": torch.finfo(dtype).eps * 4, "atol": torch.finfo(dtype).eps * 4}
    assert_close(called(x.to(dtype)), module(x.to(dtype)), **near)
    called.float()
    assert_close(called(x), module(x))


@pytest.mark.slow
def test_a_copy_has_its_own_weights():
    module, x = net().eval(), torch.randn(5, 4)
    called = compiled(module)
    called(x)
    other = copy.deepcopy(called)
    with torch.no_grad():
        other._orig_mod[0].weight.mul_(2)
    assert_close(called(x), module(x))
    assert_close(other(x), other._orig_mod(x))
    assert not torch.equal(called(x), other(x))


@pytest.mark.parametrize("in_place", [False, True])
def test_pickled(in_place):
    module, x = net().eval(), torch.randn(5, 4)
    want = module(x)
    if in_place:
        module.compile(backend=BACKEND)
        called = module
    else:
        called = compiled(module)
    assert_close(called(x), want)
    assert_close(pickle.loads(pickle.dumps(called))(x), want)


@pytest.mark.slow
def test_weights_that_are_loaded_or_replaced():
    module, other, x = net().eval(), net().eval(), torch.randn(5, 4)
    called = compiled(module)
    called(x)
    with torch.no_grad():
        for p in other.parameters():
            p.add_(1)
    module.load_state_dict(other.state_dict())
    assert_close(called(x), other(x))
    called.load_state_dict(compiled(net()).state_dict())
    assert_close(called(x), net().eval()(x))
    module.load_state_dict(other.state_dict(), assign=True)
    assert_close(called(x), other(x))
    for change in (
        lambda: setattr(module[0], "weight", nn.Parameter(torch.ones(6, 4))),
        lambda: setattr(module[0].weight, "data", torch.zeros(6, 4)),
        lambda: module.requires_grad_(False),
        lambda: module.__setitem__(0, nn.Linear(4, 6)),
    ):
        change()
        assert_close(called(x), module(x))


@pytest.mark.slow
def test_inference_training_and_no_grad_in_turn():
    module, eager = net(), net()
    called = compiled(module)
    for _ in range(3):
        x = torch.randn(5, 4)
        for mode in (torch.inference_mode, torch.no_grad):
            with mode():
                assert_close(called(x), eager(x))
        for each in (called, eager):
            each.zero_grad()
            each(x).square().sum().backward()
        assert_close([p.grad for p in module.parameters()], [p.grad for p in eager.parameters()])
        assert_close(dict(module.named_buffers()), dict(eager.named_buffers()))
        module.eval(), eager.eval()
        assert_close(called(x), eager(x))
        module.train(), eager.train()


@pytest.mark.slow
def test_a_tensor_made_in_inference_mode():
    module = net().eval()
    called = compiled(module)
    with torch.inference_mode():
        x = torch.randn(5, 4)
        assert_close(called(x), module(x))
    with torch.no_grad():
        assert_close(called(x), module(x))


def hooked(is_compiled):
    module, seen = net(), []
    module[0].register_forward_pre_hook(lambda mod, args: (args[0] * 2,))
    module[1].register_forward_hook(lambda mod, args, out: out + 1)
    module[1].register_full_backward_pre_hook(lambda mod, grads: (grads[0] * 5,))
    module[3].register_full_backward_hook(lambda mod, inner, outer: (inner[0] * 3,))
    module[0].weight.register_hook(lambda grad: grad * 2)
    module[0].weight.register_post_accumulate_grad_hook(lambda p: seen.append(float(p.grad.sum())))
    torch.manual_seed(1)
    x = torch.randn(5, 4, requires_grad=True)
    y = (compiled(module) if is_compiled else module)(x)
    y.square().sum().backward()
    return y, x.grad, [p.grad for p in module.parameters()], seen


@pytest.mark.slow
def test_hooks():
    got, want = hooked(True), hooked(False)
    assert len(want[3]) == 1
    assert_close(got, want)


@pytest.mark.slow
@pytest.mark.parametrize("shared", [False, True])
def test_threads_that_compile_and_run(shared):
    modules = [net().eval()] * 4 if shared else [nn.Sequential(nn.Linear(4, k + 2), nn.ReLU()) for k in range(4)]
    called = [compiled(modules[0])] * 4 if shared else [compiled(m) for m in modules]
    errors, done = [], []

    def work(k):
        try:
            for rows in (3, 3, 5, 5, 3):
                x = torch.randn(rows, 4)
                assert_close(called[k](x), modules[k](x))
            done.append(k)
        except BaseException as error:
            errors.append(error)
            raise

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert sorted(done) == [0, 1, 2, 3]


@pytest.mark.slow
def test_parametrizations():
    turned = parametrizations.orthogonal(nn.Linear(6, 6), orthogonal_map="cayley")
    module = nn.Sequential(nn.Linear(4, 6), parametrizations.spectral_norm(nn.Linear(6, 6)), turned).eval()
    called, x = compiled(module), torch.randn(5, 4)
    found = []
    for each in (called, module):
        y = each(x)
        found.append([y, *torch.autograd.grad(y.square().sum(), list(module.parameters()))])
    assert_close(found[0], found[1], rtol=1e-4, atol=1e-4)


def test_a_weight_norm_at_inference():
    module, x = parametrizations.weight_norm(nn.Linear(4, 6)), torch.randn(5, 4)
    with torch.no_grad():
        assert_close(compiled(module)(x), module(x))


@pytest.mark.slow
def test_averaged_copies():
    module = net()
    averaged = AveragedModel(module, multi_avg_fn=get_ema_multi_avg_fn(0.5)).eval()
    called, called_average = compiled(module), compiled(averaged)
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    for _ in range(3):
        x = torch.randn(5, 4)
        optimizer.zero_grad()
        called(x).square().sum().backward()
        optimizer.step()
        averaged.update_parameters(module)
        assert_close(called_average(x), averaged(x))


@pytest.mark.slow
def test_parameters_given_as_arguments():
    module, x = net().eval(), torch.randn(5, 4)
    call = torch.compile(lambda p, x: torch.func.functional_call(module, p, x), backend=BACKEND)
    for factor in (1.0, 2.0):
        given = {k: v * factor for k, v in module.state_dict().items()}
        assert_close(call(given, x), torch.func.functional_call(module, given, x))


def test_a_tensor_of_two_tensors():
    x = TwoTensor(torch.randn(3, 3), torch.randn(3, 3))

    def call(x):
        return (x @ x.t()).relu() + x.sum()

    got, want = torch.compile(call, backend=BACKEND)(x), call(x)
    assert type(got) is TwoTensor
    assert_close([got.a, got.b], [want.a, want.b])


def test_a_distributed_tensor():
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor, init_device_mesh

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,))
        x, w = (distribute_tensor(torch.randn(4, 4), mesh, [p]) for p in (Shard(0), Replicate()))

        def call(x, w):
            return (x @ w).relu().redistribute(placements=[Replicate()]) + 1

        got = torch.compile(call, backend=BACKEND)(x, w)
        assert type(got) is DTensor
        assert_close(got.to_local(), call(x, w).to_local())
    finally:
        dist.destroy_process_group()
