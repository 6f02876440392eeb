"""The kernel's computation: out = relu(x * scale + bias) + residual. Replace it with your own.

`compute` is the reference (on float64 inputs), gives the measure of allowed errors, and is the
baseline to beat. See docs/writing-a-problem.md, or `help(evotune.problems.UserProblem)`.
"""

from evotune.problems import UserProblem


class Problem(UserProblem):
    sizes = ("rows", "columns")  # each shape in space.yaml gives a value for each of these

    def inputs(self, rows, columns):
        matrix, row = (rows, columns), (columns,)
        return {"x": matrix, "scale": row, "bias": row, "residual": matrix}

    def outputs(self, rows, columns):
        return {"out": (rows, columns)}

    def operations(self, rows, columns):
        return 4 * rows * columns  # a product, two sums and a maximum for each element

    def compute(self, x, scale, bias, residual):
        import torch

        return {"out": torch.relu(x * scale + bias) + residual}

    def baselines_of(self, x, scale, bias, residual):
        import torch

        def addcmul():  # fewer passes over memory; torch.compile would make one
            return {"out": torch.addcmul(bias, x, scale).relu_().add_(residual)}

        return {
            "torch:eager": lambda: self.compute(x, scale, bias, residual),
            "torch:addcmul": addcmul,
        }
