"""Shows the work that `init --from-kernel-tuner` leaves, for each CUDA example of a checkout.

    python benchmarks/from_kernel_tuner.py CHECKOUT

Adapter lines are lines in or around the kernel that the user has to write. There are none, since a
kernel is brought in unchanged; this fails if a file is not copied byte for byte. `compute` says
whether the user must still write the reference.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from evotune.cli.kernel_tuner.importing import import_script
from evotune.errors import EvotuneError


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--output", action="append", default=[], help="as of evotune init")
    options = parser.parse_args()
    for script in sorted((options.checkout / "examples" / "cuda").glob("*.py")):
        print(f"{script.name:36} {result(script, options.output)}")


def result(script: Path, outputs: list[str]) -> str:
    try:
        made = import_script(script, None, None, outputs)
    except EvotuneError as error:
        return f"not read: {error}"
    for name, content in made.files.items():
        original = script.parent / name
        if original.exists() and original.read_bytes() != content:
            raise SystemExit(f"{name} is not what it was")
    compute = "to be written" if made.unwritten else "from the script"
    return f"0 adapter lines, compute {compute}"


if __name__ == "__main__":
    main()
