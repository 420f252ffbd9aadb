"""The differences between the Python versions under which jobs import this package: 3.10 to 3.13.

The service needs 3.11; a job runs in its site's own environment, whose Python may be older.
"""

from __future__ import annotations

import sys

if sys.version_info >= (3, 11):
    from enum import StrEnum
else:
    from enum import Enum

    class StrEnum(str, Enum):
        """Members are texts, and print as such."""

        __str__ = str.__str__
        __format__ = str.__format__


__all__ = ["StrEnum"]
