import torch


def weighted(x, w):
    return torch.softmax(x, -1) * w
