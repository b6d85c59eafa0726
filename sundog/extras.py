"""Modules that the base does not install, and the extra that brings each."""

EXTRAS = {
    "serve": ("h11", "h2", "httptools", "httpx", "jiter", "quart", "quart_trio", "tokenizers", "werkzeug"),
    "structured": ("llguidance",),
    "kv-events": ("msgspec", "zmq"),
    "otel": ("opentelemetry",),
    "engine": ("psutil", "safetensors", "torch", "transformers"),
    "ray": ("ray",),
    "fast": ("mypy", "mypyc", "setuptools"),
}
"""Modules by the extra of pyproject.toml that installs them."""


def how_to_install(error: ModuleNotFoundError) -> str | None:
    """One line on what to install, if the module that was not found belongs to an extra."""
    module = (error.name or "").split(".")[0]
    for extra, modules in EXTRAS.items():
        if module in modules:
            return f"this needs {module}, which is not installed: pip install 'sundog[{extra}]'"
    return None
