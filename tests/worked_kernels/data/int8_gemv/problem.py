"""A matrix of int8 times a vector of int8, summed in int32 and scaled row by row."""

from evotune.problems import Tensor, UserProblem


class Int8Gemv(UserProblem):
    sizes = ("rows", "columns")
    dtypes = ("float32",)

    def inputs(self, rows, columns):
        return {
            "weights": Tensor((rows, columns), "int8", range(-128, 128)),
            "x": Tensor((columns,), "int8", range(-128, 128)),
            "scales": Tensor((rows,), "float32", (1e-3, 1.0)),
        }

    def outputs(self, rows, columns):
        return {"out": (rows,), "sums": Tensor((rows,), "int32")}

    def operations(self, rows, columns):
        return 2 * rows * columns

    def compute(self, weights, x, scales):
        sums = weights.double() @ x.double()  # exact, and there on a GPU, which multiplies no int8
        return {"out": sums.to(scales.dtype) * scales, "sums": sums}

    def baselines_of(self, weights, x, scales):
        import torch

        def eager():
            sums = (weights.double() @ x.double()).to(torch.int32)
            return {"out": sums * scales, "sums": sums}

        return {"torch:eager": eager}
