"""The names of the files that a run leaves in its folder."""

REQUESTS = "requests.parquet"
STEPS = "steps.parquet"
SUMMARY = "summary.json"
CONFIG = "config.toml"
JOURNAL = "journal.jsonl.gz"
MESSAGES = "messages.jsonl.gz"
