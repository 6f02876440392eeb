"""Records the calls of attention that a program makes: `evotune.record`, `evotune.recording`.

`_seen_calls` turns the tensors of a call into facts, and `described_calls` turns these facts into
an entry of a file of cases. `_replaced_functions` replaces functions of PyTorch and of other
programs, and `_compiled_graphs` reads graphs of torch.compile. `recordings` opens and closes a
recording, and watches for modules that are imported later. `calls` has the recorded calls.
"""
