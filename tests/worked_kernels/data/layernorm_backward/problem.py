"""Gradients of a layer norm: of its input, and of its weight and bias, summed over all rows."""

from evotune.problems import Tensor, UserProblem


class LayerNormBackward(UserProblem):
    sizes = ("rows", "columns")
    dtypes = ("float32",)

    def inputs(self, rows, columns):
        return {
            "dout": (rows, columns),
            "x": (rows, columns),
            "weight": (columns,),
            "mean": (rows,),
            "rstd": Tensor((rows,), "float32", (0.1, 10.0)),
        }

    def outputs(self, rows, columns):
        return {"dx": (rows, columns), "dweight": (columns,), "dbias": (columns,)}

    def operations(self, rows, columns):
        return 12 * rows * columns

    def compute(self, dout, x, weight, mean, rstd):
        norm = (x - mean[:, None]) * rstd[:, None]
        scaled = dout * weight
        own = scaled.mean(-1, keepdim=True)
        along = (scaled * norm).mean(-1, keepdim=True)
        return {
            "dx": (scaled - own - norm * along) * rstd[:, None],
            "dweight": (dout * norm).sum(0),
            "dbias": dout.sum(0),
        }
