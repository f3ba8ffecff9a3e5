"""JSON schemas for tests: 50 that can be followed, 9 that must be refused by name.

They stand in `grammar_schemas.json`. Strings and arrays are bounded, so that a model that has
nothing to say still comes to an end.
"""

import json
from pathlib import Path

_SCHEMAS = json.loads(Path(__file__).with_suffix(".json").read_text("utf-8"))
FOLLOWED, REFUSED = _SCHEMAS["followed"], _SCHEMAS["refused"]
