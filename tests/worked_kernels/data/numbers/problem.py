"""Rows of small integers, masks, doubles and complex numbers, each with a result of its own."""

from evotune.problems import Tensor, UserProblem


class Numbers(UserProblem):
    sizes = ("rows", "columns")
    dtypes = ("float64",)

    def inputs(self, rows, columns):
        return {
            "codes": Tensor((rows, columns), "int8", range(-128, 128)),
            "steps": Tensor((rows,), "int16", range(-(1 << 15), 1 << 15)),
            "keys": Tensor((rows, columns), "int64", range(-(1 << 63), 1 << 63)),
            "seen": Tensor((rows, columns), "bool"),
            "x": (rows, columns),
            "z": Tensor((rows, columns), "complex64"),
        }

    def outputs(self, rows, columns):
        return {
            "total": Tensor((rows,), "int8"),
            "twice": Tensor((rows,), "int16"),
            "least": Tensor((rows,), "int64"),
            "any": Tensor((rows,), "bool"),
            "mean": (rows,),
            "shifted": (rows, columns),
            "squares": Tensor((rows, columns), "complex64"),
        }

    def operations(self, rows, columns):
        return rows * columns

    def compute(self, codes, steps, keys, seen, x, z):
        import torch

        total = torch.where(seen, codes.long(), 0).sum(-1)
        return {
            "total": total.clamp(-128, 127).to(torch.int8),
            "twice": (2 * steps.long()).clamp(-(1 << 15), (1 << 15) - 1).to(torch.int16),
            "least": keys.amin(-1),
            "any": seen.any(-1),
            "mean": torch.where(seen, x, 0.0).sum(-1) / x.shape[-1],
            "shifted": torch.exp(x - x.amax(-1, keepdim=True)) + 0.1,
            "squares": z * z + z.conj(),
        }
