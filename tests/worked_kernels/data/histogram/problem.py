"""Counts of the keys in a list, added to the counts so far."""

from evotune.problems import InOut, Tensor, UserProblem


class Histogram(UserProblem):
    sizes = ("n", "bins")
    dtypes = ("float32",)

    def inputs(self, n, bins):
        return {
            "keys": Tensor((n,), "int16", range(bins)),
            "counts": InOut((bins,), "int32", range(1 << 30)),
        }

    def outputs(self, n, bins):
        return {}

    def operations(self, n, bins):
        return n

    def check(self, n, bins):
        if bins > 4096:
            raise ValueError("more than 4096 bins")

    def compute(self, keys, counts, bins):
        import torch

        own = torch.zeros(bins, dtype=counts.dtype, device=counts.device)
        ones = torch.ones_like(keys, dtype=counts.dtype)
        return {"counts": counts + own.index_add(0, keys.long(), ones)}
