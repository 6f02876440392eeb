"""out = softmax(x) * w, by rows."""

from evotune.problems import UserProblem


class Weighted(UserProblem):
    sizes = ("rows", "columns")

    def inputs(self, rows, columns):
        return {"x": (rows, columns), "w": (columns,)}

    def outputs(self, rows, columns):
        return {"out": (rows, columns)}

    def operations(self, rows, columns):
        return 6 * rows * columns

    def compute(self, x, w):
        return {"out": x.softmax(dim=-1) * w}
