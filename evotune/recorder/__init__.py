"""Records the calls of attention that a program makes: `evotune.record`, `evotune.recording`.

`_seen_calls` turns the tensors of a call into facts, and `described_calls` these into the case that
a file of cases has. `_replaced_functions` stands in for PyTorch's and other programs' functions,
and `_compiled_graphs` looks into graphs of torch.compile. `recordings` opens and closes a
recording, and watches for modules that are imported later. `calls` keeps what was recorded.
"""
