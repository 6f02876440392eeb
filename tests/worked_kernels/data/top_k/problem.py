"""The k highest values of each row in falling order, and their places; ties in any order."""

from evotune.problems import Tensor, UserProblem


class TopK(UserProblem):
    sizes = ("rows", "columns", "k")
    dtypes = ("float32",)

    def inputs(self, rows, columns, k):
        return {"x": (rows, columns)}

    def outputs(self, rows, columns, k):
        return {"values": (rows, k), "places": Tensor((rows, k), "int64", range(columns))}

    def operations(self, rows, columns, k):
        return rows * columns

    def check(self, rows, columns, k):
        if k > columns:
            raise ValueError("k is more than columns")

    def compute(self, x, k):
        values, places = x.topk(k, dim=-1)
        return {"values": values, "places": places}

    def same(self, outputs, reference, inputs):
        values, places, x = outputs["values"], outputs["places"], inputs["x"]
        ordered = places.sort(-1).values
        return (
            bool((values == reference["values"]).all())
            and bool((x.gather(-1, places) == values).all())
            and bool((ordered[:, 1:] != ordered[:, :-1]).all())
        )
