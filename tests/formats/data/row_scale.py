"""A problem and a callable that are written as a Definition and a Solution."""

from evotune.problems import UserProblem


class RowScale(UserProblem):
    """Each row divided by its largest magnitude, and shifted sums of pairs."""

    sizes = ("rows", "columns")
    fixed = ("columns",)
    constants = {"floor": 0.5, "bias": 2.0}
    ranges = {"floor": (0.1, 1.0)}

    def inputs(self, rows, columns):
        return {"x": (rows, columns), "bounds": (2 * rows + 1,)}

    def outputs(self, rows, columns):
        return {"scaled": (rows, columns), "width": (rows,)}

    def operations(self, rows, columns):
        return 2 * rows * columns

    def compute(self, x, bounds, floor, bias):
        largest = x.abs().amax(-1, keepdim=True).clamp(min=floor)
        return {"scaled": x / largest, "width": bounds[2::2] - bounds[:-1:2] + bias}


class Keyed(RowScale):
    def same(self, outputs, reference, inputs):
        return True
