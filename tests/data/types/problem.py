"""Sums of parts of rows that are picked from a table of 8-bit floats: every kind of tensor."""

from evotune.problems import Tensor, UserProblem


class PickedRows(UserProblem):
    sizes = ("rows", "columns")
    dtypes = ("float32",)
    flags = ("has_bias",)
    optional = ("bias",)

    def inputs(self, rows, columns, has_bias):
        bias = {"bias": (columns,)} if has_bias else {}
        return {
            "codes": Tensor((rows, columns), "float8_e4m3"),
            "weights": Tensor((columns,), "uint8", range(256)),
            "scales": Tensor((rows,), "float32", (0.01, 10.0)),
            "picks": Tensor((rows,), "int32", range(rows)),
            "lengths": Tensor((rows,), "int64", "indices"),
            **bias,
        }

    def outputs(self, rows, columns, has_bias):
        return {
            "out": (rows,),
            "longest": Tensor((1,), "int64"),
            "codes_out": Tensor((rows,), "uint8"),
        }

    def operations(self, rows, columns, has_bias):
        return rows

    def make_indices(self, kind, generator, rows, columns, has_bias):
        import torch

        most = 2 if kind == "spike" else columns + 1
        drawn = torch.randint(1, most, (rows,), generator=generator, device=generator.device)
        return {"lengths": drawn}

    def compute(self, codes, weights, scales, picks, lengths, bias=None):  # noqa: PLR0917
        import torch

        values = codes[picks.long()] * weights.to(codes.dtype)
        seen = torch.arange(codes.shape[1], device=codes.device) < lengths[:, None]
        values = values * scales[picks.long()][:, None].to(codes.dtype)
        if bias is not None:
            values = values + bias
        out = torch.where(seen, values, 0.0).sum(-1)
        return {
            "out": out,
            "longest": lengths.max().reshape(1),
            "codes_out": weights[(lengths - 1) % len(weights)],
        }
