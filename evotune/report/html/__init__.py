"""Runs as one self-contained page: everything is in the file, nothing is fetched."""

from typing import Final

from evotune.report.html.page import html_page
from evotune.report.markdown import Explained

__all__ = ["MOST_TRIALS", "Explained", "html_page"]

MOST_TRIALS: Final = 20_000
"""Most trials on a page; of a longer run it holds a sample. A browser takes seconds for 100,000."""
