"""Tunes softmax on the CPU and uses the best kernel: `python examples/tune_softmax.py [TRIALS]`."""

import sys

import torch

import evotune

trials = int(sys.argv[1]) if len(sys.argv) > 1 else 30
shape = {"rows": 64, "columns": 1000}
run = evotune.tune("softmax-cpu", trials=trials, cases=[shape], champions=1 if trials > 5 else 0)
print(run.best)
softmax = run.best.kernel()
x = torch.randn(shape["rows"], shape["columns"])
print("largest difference:", (softmax(x) - x.softmax(dim=-1)).abs().max().item())
print("report:", run.report("softmax.html"))
