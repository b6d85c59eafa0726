"""Files from the Hugging Face hub for simulations: configuration or tokenizer, without weights."""

from importlib.util import find_spec

from sundog.actors.config import ConfigError
from sundog.actors.core.names import did_you_mean, normal


def config_folder(name: str, revision: str | None = None) -> str:
    """Return the folder of a model's configuration, downloaded from the hub if needed; else the name
    itself.
    """
    from sundog.sim.hardware.model import is_known, known_models

    if is_known(name) or find_spec("huggingface_hub") is None:
        return name
    from sundog.runtime.checkpoint.hub import NotFound

    try:
        return _fetched_part(name, revision, tokenizer=False)
    except NotFound as error:
        near = did_you_mean(normal(name.rpartition("/")[2]), known_models(), cutoff=0.8)
        raise ConfigError(f"{name} is no model that Sundog describes, and {error}.{near}") from error


def tokenizer_folder(name: str, revision: str | None = None) -> str:
    """Return the folder of a tokenizer, downloaded if it is a name on the hub; else the name itself."""
    return _fetched_part(name, revision, tokenizer=True)


def _fetched_part(name: str, revision: str | None, *, tokenizer: bool) -> str:
    from sundog.runtime.checkpoint.hub import fetch_config, hub_model

    asked = hub_model(name, revision)
    return name if asked is None else str(fetch_config(asked, tokenizer=tokenizer))
