"""Shows which Kernel Tuner scripts of a folder come in by `init --from-kernel-tuner`, and why not.

    python benchmarks/lab/from_kernel_tuner.py FOLDER [--args "CUDA a100"] [--output ARRAY]

The scripts are run, with your rights. Each runs until it calls `tune_kernel`. For one that comes in
the line says whether the user must still write `compute`, and this fails if a file of the kernel is
not copied byte for byte. The last line counts.
"""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path

from evotune.errors import EvotuneError
from evotune.extras import importer
from evotune.user_code import trust


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--args", default="", help="as of evotune init")
    parser.add_argument("--output", action="append", default=[], help="as of evotune init")
    parser.add_argument("--into", type=Path, help="write each space into a folder of its own there")
    options = parser.parse_args()
    lines = []
    for script in sorted(options.folder.rglob("*.py")):
        lines.append(result(script, options))
        print(f"{script.relative_to(options.folder)!s:45} {lines[-1]}", flush=True)
    print(f"{sum(not line.startswith('-') for line in lines)} of {len(lines)} come in")


def result(script: Path, options: argparse.Namespace) -> str:
    try:
        with trust.all_agreed():
            made = importer("kernel_tuner").import_script(
                script,
                name=None,
                kernel=None,
                outputs=options.output,
                arguments=shlex.split(options.args),
            )
    except EvotuneError as error:
        return f"- {str(error).removeprefix(str(script))}"
    for name, content in made.files.items():
        original = script.parent / name
        if original.exists() and original.read_bytes() != content:
            raise SystemExit(f"{name} is not what it was")
        if options.into is not None:
            path = options.into / f"{script.parent.name}-{script.stem}" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
    return "compute to be written" if made.unwritten else "complete"


if __name__ == "__main__":
    main()
