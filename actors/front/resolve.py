"""From sampling parameters as clients give them to those that the engine takes."""

from dataclasses import replace

from actors.core.params.constraint import Constraint
from actors.core.params.sampling import Sampling
from actors.front.bad_words import spellings
from actors.front.codec import GrammarChecker, TextCodec, Vocabulary
from actors.messages import Refused


def resolved(sampling: Sampling, codec: TextCodec | None, vocabulary: Vocabulary) -> Sampling | Refused:
    """Bad words as tokens, -1 as the size of the vocabulary, the model's own end tokens among the stops."""
    if sampling.bad_words:
        if codec is None:
            return Refused("there is no tokenizer: bad_words cannot be used", param="bad_words")
        try:
            words = spellings(sampling.bad_words, codec.encode_plain)
        except UnicodeEncodeError:
            return Refused("bad_words has half of a surrogate pair: send whole characters", param="bad_words")
        except ValueError as refusal:
            return Refused(str(refusal), param="bad_words")
        sampling = replace(sampling, bad_words_token_ids=words)
    if sampling.constraint is not None:
        refused = _check(sampling.constraint, vocabulary.grammars)
        if refused is not None:
            return refused
    size = vocabulary.size
    if size is not None and sampling.logprobs == -1:
        sampling = replace(sampling, logprobs=size)
    if size is not None and sampling.prompt_logprobs == -1:
        sampling = replace(sampling, prompt_logprobs=size)
    if vocabulary.stop_token_ids and not sampling.ignore_eos:
        sampling = replace(sampling, stop_token_ids=sampling.stop_token_ids + vocabulary.stop_token_ids)
    return sampling


def _check(constraint: Constraint, grammars: GrammarChecker | None) -> Refused | None:
    """Why no answer is held to the constraint; compiles it."""
    param = constraint.param
    if grammars is None:
        return Refused(f"{param} is not supported: no model is here that could keep to it", param=param)
    try:
        grammars.check(constraint)
    except ValueError as reason:
        return Refused(f"{param} cannot be used: {reason}", param=param)
    return None
