"""Its weights are made in another order, and are set to those of Model all the same."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, rows, width):
        super().__init__()
        self.scale = nn.Parameter(torch.rand(width))
        self.table = nn.Embedding(rows, width)

    def forward(self, tokens, x):
        y = torch.addcmul(x, self.table.weight[tokens], self.scale)
        return [y, y.max(-1).values]
