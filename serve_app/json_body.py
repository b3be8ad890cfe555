"""An HTTP body as a JSON object, or a 400 that says what is wrong with it.

Python's parser is used because the engine uses it too: both must read the same request. What it takes beyond
JSON (NaN, Infinity, 1e309) is found later, by the checks that know the field's name.
"""

from __future__ import annotations

import json
from typing import Any

from serve_app.errors import invalid


def parse_object(body: bytes) -> dict[str, Any]:
    """The JSON object in `body`. Raises ApiError (400) for anything else."""
    try:
        value = json.loads(body)
    except UnicodeDecodeError as error:
        raise invalid(None, f"the body is not valid {error.encoding}: {error.reason}") from None
    except json.JSONDecodeError as error:
        raise invalid(None, f"the body is not valid JSON: {error}") from None
    except RecursionError:
        raise invalid(None, "the body is nested too deeply") from None
    except ValueError as error:
        raise invalid(None, f"the body holds a number that is too long: {error}") from None
    if not isinstance(value, dict):
        raise invalid(None, f"the body must be a JSON object, not {type(value).__name__}")
    return value
