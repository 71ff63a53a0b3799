"""Use an operator that another module registers.

python example_use_import_new_custom_op.py
"""

import new_custom_op  # noqa: F401 -- registers the operator, its converter and its kernel
import torch

import torchair


class Model(torch.nn.Module):
    def forward(self, x, shift):
        y = torch.ops.npu_define_new.scale_shift(x, shift, scale=3.0)
        return torch.ops.npu_define_new.scale_shift(y, scale=0.5)


def main():
    model = Model()
    compiled = torch.compile(model, backend=torchair.get_npu_backend(), fullgraph=True, dynamic=True)
    for rows in (2, 5):
        x, shift = torch.randn(rows, 4), torch.randn(4)
        torch.testing.assert_close(compiled(x, shift), model(x, shift))
    print("scale_shift runs in the GE graph, at every size, and equals eager")


if __name__ == "__main__":
    main()
