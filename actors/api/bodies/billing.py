"""What Claude Code says of itself at the beginning of a system prompt."""

BILLING = "x-anthropic-billing-header"
"""How the block begins that accounts for a request: it differs each time, and no prefix would be cached."""


def without_billing(text: str) -> str:
    """A system's text without such lines, which gateways keep where they make a chat of a message."""
    if BILLING not in text:
        return text
    return "\n".join(line for line in text.split("\n") if not line.startswith(BILLING))
