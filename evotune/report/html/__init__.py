"""Runs as one self-contained page: everything is in the file, nothing is fetched."""

from evotune.report.html.page import html_page

__all__ = ["html_page"]
