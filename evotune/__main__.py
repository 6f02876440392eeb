"""`evotune` and `python -m evotune`: the process of the command line, from its first instruction.

It imports next to nothing before it is ready for Ctrl-C and, for `doctor`, has looked which
packages are here.
`python -m` puts the working folder before everything that is installed. Its files must not be taken
for modules, so it leaves the path first, unless evotune itself lies there. Until then only modules
are imported that Python has loaded already.
"""

try:
    import os
    import sys

    _FOLDER = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
    if not sys.flags.safe_path and sys.path[0] == os.getcwd() != _FOLDER:
        del sys.path[0]

    import signal
    from types import FrameType
except KeyboardInterrupt:
    raise SystemExit(130) from None

_INTERRUPTED = 130


def main() -> None:
    """Runs the command line and exits the process with its code."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # as a shell has it for `&`
        signal.signal(signal.SIGINT, _leave)
    from evotune.cli import packages

    if sys.argv[1:2] == ["doctor"] and (missing := packages.missing()):
        raise SystemExit(packages.doctor(missing, sys.argv[2:]))
    try:
        from evotune.cli.main import main as run
    except ModuleNotFoundError as error:
        if (name := packages.provider(error.name)) is None:
            raise
        raise SystemExit(packages.say_missing(name)) from None
    run()


def _leave(signum: int, frame: FrameType | None) -> None:
    """Ctrl-C while nothing needs cleaning up: commands have their own way while something does.

    No KeyboardInterrupt, since an import that meets one fails in ways of its own.
    """
    try:
        os.write(2, b"interrupted\n")
    finally:
        os._exit(_INTERRUPTED)


if __name__ == "__main__":
    main()
