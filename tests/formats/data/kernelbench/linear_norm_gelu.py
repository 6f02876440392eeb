import torch
from torch import nn


class Model(nn.Module):
    """A linear layer, a layer normalization and GELU."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.linear = nn.Linear(inputs, outputs)
        self.norm = nn.LayerNorm(outputs)

    def forward(self, x):
        return nn.functional.gelu(self.norm(self.linear(x)))


def get_inputs():
    return [torch.rand(32, 96)]


def get_init_inputs():
    return [96, 40]
