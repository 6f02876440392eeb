import torch
from task import input_t, output_t
from utils import make_match_reference


def ref_kernel(data: input_t) -> output_t:
    x, y, scale, output = data
    output[...] = x.float() + scale * y.float()
    return output


def generate_input(size: int, scale: float, seed: int) -> input_t:
    torch.manual_seed(seed)
    x = torch.randn(size, device="cuda", dtype=torch.float32).to(torch.float16)
    y = torch.randn(size, device="cuda", dtype=torch.float32).to(torch.float16)
    return x, y, scale, torch.empty(size, device="cuda", dtype=torch.float32)


check_implementation = make_match_reference(ref_kernel)
