"""A small model, compiled for the NPU backend and compared with eager: ``python3 examples/example.py``.

Without an NPU the embedded CPU engine runs the graph.
"""

import torch

import torchair


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = torch.nn.Linear(16, 32), torch.nn.Linear(32, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.relu(self.up(x)))


def main() -> None:
    config = torchair.CompilerConfig()
    model, x = Model().eval(), torch.randn(8, 16)
    compiled = torch.compile(model, backend=torchair.get_npu_backend(compiler_config=config))
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x))
    print("equals eager")


if __name__ == "__main__":
    main()
