"""out = alpha * x + y on a GPU, in Triton. Replace it with your own computation.

Shapes    x, y, out (count), contiguous, float32; any count >= 1.
Tunables  BLOCK    elements of a program
          STEPS    a program takes so many blocks, one after the other

Every parameter of space.yaml arrives as the constexpr of that name; NUM_WARPS and NUM_STAGES are
Triton's own. The other arguments are those that space.yaml lists. Import nothing but installed
packages: the file is compiled alone.
"""

import triton
import triton.language as tl


@triton.jit
def @ENTRY@(x, y, out, alpha, count, BLOCK: tl.constexpr, STEPS: tl.constexpr):
    first = tl.program_id(0).to(tl.int64) * BLOCK * STEPS
    for step in range(STEPS):
        places = first + step * BLOCK + tl.arange(0, BLOCK)
        inside = places < count
        values = alpha * tl.load(x + places, mask=inside) + tl.load(y + places, mask=inside)
        tl.store(out + places, values, mask=inside)
