"""Ray's long messages, cut to a line."""


def why(error: Exception) -> str:
    """Why something on a cluster ended, at most 300 characters of it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    said = lines[-1] if lines else type(error).__name__
    if type(error).__name__ == "ActorUnavailableError":
        said = said.rpartition("unavailable: ")[2].partition(". The task may")[0]
    return said[:300]
