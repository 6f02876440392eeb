"""It takes the greatest element before the last column is added."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, rows, width):
        super().__init__()
        self.table = nn.Embedding(rows, width)
        self.scale = nn.Parameter(torch.rand(width))

    def forward(self, tokens, x):
        y = torch.addcmul(x, self.table.weight[tokens], self.scale)
        return y, y[:, :-1].amax(-1)
