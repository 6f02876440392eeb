"""The version of evotune that runs store and pages say."""

from typing import Final

__version__: Final = "0.1.0"
