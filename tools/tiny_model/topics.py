"""Examples about the model itself, about serving and about nature, read from topics.toml."""

import tomllib
from pathlib import Path

_DATA = tomllib.loads((Path(__file__).parent / "topics.toml").read_text("utf-8"))

TOPICS: dict[str, str] = _DATA["topics"]
TOPIC_QUESTIONS: list[str] = _DATA["topic_questions"]
SMALL_TALK: list[tuple[list[str], str]] = [
    (each["questions"], each["answer"]) for each in _DATA["small_talk"]
]
UNKNOWN: list[str] = _DATA["unknown"]
UNKNOWN_SLOTS: dict[str, list[str]] = _DATA["unknown_slots"]
UNKNOWN_ANSWER: str = _DATA["unknown_answer"]
SYSTEM_PROMPTS: list[str] = _DATA["system_prompts"]
