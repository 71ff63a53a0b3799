"""Elements addressed by their place in memory: as_strided, resize_, sliding windows; each program equals eager."""

import torch

from tests.data_dependent.programs import Programs, leaf, num, ramp

PROGRAMS = program = Programs()


@program((leaf(4, 6),), grad=True)
def strided_outside(x):
    return x[1:3].as_strided((4, 6), (6, 1), 0) * 2


@program((leaf(4, 6),), grad=True)
def strided_row(x):
    return x[1].as_strided((2, 6), (6, 1), 6) * 2


@program((leaf(4, 6),), grad=True)
def strided_sliced_windows(x):
    return x[:, 1:].as_strided((4, 3, 3), (6, 1, 1)) * 2


@program((leaf(24),), grad=True)
def strided_windows(x):
    return x[2:].as_strided((8, 4), (2, 1)) * 2


@program((leaf(24),), grad=True)
def strided_overlap_outside(x):
    return x[4:8].as_strided((6, 4), (3, 1), 0) * 2


@program((ramp(24),))
def strided_write(x):
    x.as_strided((3, 4), (8, 2), 1).mul_(2)
    return x


@program((ramp(24),))
def strided_write_slice(x):
    y = x[4:8]
    y.as_strided((3, 4), (8, 2), 0).mul_(2)
    return x + 1


@program((ramp(24),))
def strided_scatter(x):
    return torch.as_strided_scatter(x, torch.ones(3, 4), (3, 4), (8, 2), 1)


@program((ramp(4, 6),))
def strided_computed(x):
    return (x * 2)[1:3].as_strided((4, 6), (6, 1), 0)


@program((ramp(4, 6),))
def strided_computed_t(x):
    return (x * 2).t()[1:3].as_strided((4, 6), (6, 1), 0)


@program((ramp(4, 6).t(),))
def strided_input_t(x):
    return x[1:3].as_strided((4, 6), (6, 1), 0)


@program((ramp(8, 6)[::2, 1:4],))
def strided_input_gaps(x):
    return x.as_strided((4, 2), (12, 1), 1)


@program((ramp(8, 6)[::2, 1:4],))
def strided_input_gaps_outside(x):
    return x.as_strided((4, 6), (6, 1), 0)


@program((ramp(12),))
def resize(x):
    y = x.clone()
    y.resize_(3, 2)
    return y


@program((ramp(12),))
def resize_same(x):
    y = x + 1
    y.resize_(3, 4)
    return y * 2


@program((leaf(20),), grad=True)
def unfold_slice(x):
    return x[2:18].unfold(0, 4, 2) * 2


@program((leaf(4, 20),), grad=True)
def unfold_step(x):
    return x[::2, 3:].unfold(1, 4, 3) * 2


@program((leaf(4, 20),), grad=True)
def unfold_twice(x):
    return x[:, 1:].unfold(1, 5, 3).unfold(0, 2, 1) * 2


@program((leaf(4, 20),), grad=True)
def unfold_t(x):
    return x.t()[1:].unfold(0, 4, 2) * 2


@program((ramp(4, 20), num(4)), (ramp(4, 20), num(6)))
def unfold_item(x, n):
    return x[:, : n.item()].unfold(1, 2, 1)


@program((ramp(20), num(2)), (ramp(20), num(3)))
def strided_item(x, n):
    return x.as_strided((n.item(), 3), (4, 1), 1)


@program((ramp(20), num(2)), (ramp(20), num(3)))
def strided_item_offset(x, n):
    return x.as_strided((3, 3), (4, 1), n.item())


@program((ramp(6),))
def data_set(x):
    y = torch.empty(0)
    y.set_(x.clone())
    return y * 2


def test_equals_eager(program, way, assert_as_eager):
    assert_as_eager(PROGRAMS[program], way)
