"""out = relu(x * scale + bias) + residual on a GPU, in Triton. Replace it with your own computation.

Shapes    x, residual, out (rows, COLUMNS), scale, bias (COLUMNS), contiguous, float32; any sizes.
Tunables  BLOCK    columns of a program
          ROWS     rows of a program: its scale and bias are read once for all of them

Every parameter of space.yaml arrives as the constexpr of that name, and so does COLUMNS, which is
under `define:` there: Triton then knows how rows are aligned. NUM_WARPS and NUM_STAGES are
Triton's own. The other arguments are those that space.yaml lists. Import nothing but installed
packages: the file is compiled alone.
"""

import triton
import triton.language as tl


@triton.jit
def @ENTRY@(
    x, scale, bias, residual, out, rows,
    COLUMNS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)[None, :]
    exists = column < COLUMNS
    scales = tl.load(scale + column, mask=exists)
    biases = tl.load(bias + column, mask=exists)
    places = row * COLUMNS + column
    inside = (row < rows) & exists
    values = tl.maximum(tl.load(x + places, mask=inside) * scales + biases, 0.0)
    values += tl.load(residual + places, mask=inside)
    tl.store(out + places, values, mask=inside)
