"""out = 2 * x + 1."""

from evotune.problems import UserProblem


class Scaled(UserProblem):
    sizes = ("rows", "columns")

    def inputs(self, rows, columns):
        return {"x": (rows, columns)}

    def outputs(self, rows, columns):
        return {"out": (rows, columns)}

    def operations(self, rows, columns):
        return 2 * rows * columns

    def compute(self, x):
        return {"out": 2.0 * x + 1.0}
