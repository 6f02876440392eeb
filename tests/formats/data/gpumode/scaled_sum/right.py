import torch
from task import input_t, output_t


def custom_kernel(data: input_t) -> output_t:
    x, y, scale, output = data
    return torch.add(x.float(), y.float(), alpha=scale, out=output)
