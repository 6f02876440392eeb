"""The kernel's computation: out = alpha * x + y. Replace it with your own.

`compute` is the reference (on float64 inputs), gives the measure of allowed errors, and is the
baseline to beat. See docs/writing-a-problem.md, or `help(evotune.problems.UserProblem)`.
"""

from evotune.problems import UserProblem


class Problem(UserProblem):
    sizes = ("count",)  # each shape in space.yaml gives a value for each of these
    constants = {"alpha": 2.5}  # more names that space.yaml can use as arguments

    def inputs(self, count):
        return {"x": (count,), "y": (count,)}

    def outputs(self, count):
        return {"out": (count,)}

    def operations(self, count):
        return 2 * count  # a multiplication and an addition for each element

    def compute(self, x, y):
        return {"out": self.constants["alpha"] * x + y}

    def baselines_of(self, x, y):
        import torch

        alpha = self.constants["alpha"]
        return {
            "torch:eager": lambda: self.compute(x, y),
            "torch:add": lambda: {"out": torch.add(y, x, alpha=alpha)},
        }
