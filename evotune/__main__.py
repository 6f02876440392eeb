"""`python -m evotune`."""

from evotune.cli.main import main

main()
