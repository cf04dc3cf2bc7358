"""``Linear``: the projection without bias that every part of the model uses."""

from __future__ import annotations

from torch import Tensor, nn

from genoctx_kernels.product import linear


class Linear(nn.Linear):
    """y = W x for ``x`` [..., inputs]: [..., outputs], by the fastest product this device has."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight)
