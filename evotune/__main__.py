"""`evotune` and `python -m evotune`: the start of the command line's process.

It imports almost nothing until Ctrl-C is taken care of, which its own import does: only a command's
process imports it. For `doctor` it first checks which packages are installed.

`python -m` puts the working folder before everything that is installed. The folder's files must not
be taken for modules, so this module first removes the folder from the path, unless evotune itself
lies there. Until then it imports only modules that Python has loaded already.
"""

try:
    import os
    import sys

    _FOLDER = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
    try:
        _HERE = os.getcwd()
    except FileNotFoundError:
        _HERE = ""  # the working folder was deleted; a command that needs it says so
    if not sys.flags.safe_path and sys.path[0] == _HERE != _FOLDER:
        del sys.path[0]

    import signal
    from types import FrameType

    def _leave(signum: int, frame: FrameType | None) -> None:
        """Ends the process at Ctrl-C. Commands replace this handler while something needs cleaning
        up.

        It raises no KeyboardInterrupt, since an import may turn that into another error.
        """
        try:
            os.write(2, b"interrupted\n")
        finally:
            os._exit(130)

    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # a shell has `&` ignore it
        signal.signal(signal.SIGINT, _leave)
except KeyboardInterrupt:
    raise SystemExit(130) from None


def main() -> None:
    """Runs the command line and exits the process with its code."""
    _open_closed_streams()
    from evotune import packages
    from evotune.packages import is_no_memory, say_no_memory

    if sys.argv[1:2] == ["doctor"] and (missing := packages.missing()):
        raise SystemExit(packages.doctor(missing, sys.argv[2:]))
    try:
        from evotune.cli.main import main as run

        run()
    except ModuleNotFoundError as error:
        if (name := packages.provider(error.name)) is None:
            raise
        raise SystemExit(packages.say_missing(name)) from None
    except (MemoryError, ImportError) as error:
        if not is_no_memory(error):
            raise
        raise SystemExit(say_no_memory(error)) from None


def _open_closed_streams() -> None:
    """Opens the null device in place of each standard stream that the caller has closed: else the
    next file that is opened would get its number, and what others print."""
    number = os.open(os.devnull, os.O_RDWR)
    while number <= 2:  # the lowest number that is free is taken
        number = os.dup(number)
    os.close(number)
    sys.stdin = sys.stdin or os.fdopen(0)
    sys.stdout = sys.stdout or os.fdopen(1, "w", encoding="utf-8")
    sys.stderr = sys.stderr or os.fdopen(2, "w", encoding="utf-8")


if __name__ == "__main__":
    main()
