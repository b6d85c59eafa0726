"""The draft model of a speculative configuration."""

from actors.config.speculative import SpeculativeConfig
from actors.core.config import ConfigError
from sim.hardware.model import load_model
from sim.hardware.shape import ModelShape


def draft_of(asked: SpeculativeConfig | None, model: ModelShape) -> ModelShape | None:
    """The draft model, if drafts come from one; ConfigError if it has not the vocabulary of the model."""
    if asked is None or asked.model is None:
        return None
    draft = load_model(asked.model)
    if draft.vocab_size != model.vocab_size:
        raise ConfigError(
            f"--speculative-config: the draft model {draft.name} has a vocabulary of {draft.vocab_size}"
            f" tokens, {model.name} one of {model.vocab_size}: drafts need the same tokens; choose another"
        )
    return draft
