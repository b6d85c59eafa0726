"""JSON whose shape is somebody else's: read field by field, and never sent to an actor."""

from typing import Any

Json = dict[str, Any]
