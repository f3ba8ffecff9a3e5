"""The list of models as Anthropic's clients read it.

In: names of models. Out: an object for JSON.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any


def described(name: str, created: int) -> dict[str, Any]:
    """A model.

    Args:
        name: Its name.
        created: Since when it is served, in seconds since 1970.
    """
    since = datetime.fromtimestamp(created, UTC).isoformat().replace("+00:00", "Z")
    return {"type": "model", "id": name, "display_name": name, "created_at": since}


def listed(names: Sequence[str], created: int) -> dict[str, Any]:
    """All models; arguments are those of `described`."""
    return {
        "data": [described(name, created) for name in names],
        "has_more": False,
        "first_id": names[0],
        "last_id": names[-1],
    }
