"""Which process listens at a port, where the system lets us know."""


def holder_of(port: int) -> str:
    """Words for the end of a refusal: its number, name and command; empty where they are not ours to see."""
    try:
        import psutil  # type: ignore[import-untyped]  # ships no types
    except ModuleNotFoundError:
        return ""
    try:
        for connection in psutil.net_connections("tcp"):
            if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port and connection.pid:
                process = psutil.Process(connection.pid)
                return f"; process {process.pid} has it: {_short(process.cmdline() or [process.name()])}"
    except (psutil.Error, OSError):
        pass
    return ""


def _short(command: list[str]) -> str:
    text = " ".join(command)
    return text if len(text) <= 80 else f"{text[:79]}…"
