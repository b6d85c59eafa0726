"""The body of POST /v1/embeddings."""

from dataclasses import replace
from typing import Annotated, Literal

from pydantic import Field, PlainValidator

from actors.api.bodies.bounds import INT32_MAX, WHOLE
from actors.api.bodies.completion import Prompt, PromptInput, as_prompts
from actors.api.bodies.parsing import JsonObject
from actors.api.bodies.terms import TermsBody
from actors.api.errors import invalid
from actors.config.vector_sizes import VectorSizes
from actors.core.params.pooling import Pooling
from actors.core.params.sampling import Sampling
from actors.messages import Reading

UNSUPPORTED: dict[str, tuple[object, ...]] = {
    "chat_template": (),
    "embed_dtype": ("float32",),
    "endianness": ("native", "little"),
    "messages": (),
    "mm_processor_kwargs": ({},),
    "normalize": (),
    "padding": ("do_not_pad",),
    "task": ("embed",),
}


class TruncatedBody(JsonObject):
    """How texts become tokens of which a vector is made."""

    truncate_prompt_tokens: Annotated[int, Field(ge=-1, le=INT32_MAX), WHOLE] | None = None
    truncation_side: Literal["left", "right"] = "right"

    def reading(self) -> Reading:
        """The same for the tokenizer."""
        return Reading(
            truncate_prompt_tokens=self.truncate_prompt_tokens, truncation_side=self.truncation_side
        )


class EmbeddingBody(TruncatedBody, TermsBody):
    """Texts or token ids, each of which becomes a vector; defaults are vLLM's."""

    input: Annotated[tuple[Prompt, ...], PlainValidator(as_prompts, json_schema_input_type=PromptInput)]
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Annotated[int, Field(ge=1, le=INT32_MAX), WHOLE] | None = None
    use_activation: bool | None = None
    add_special_tokens: bool | None = None

    def reading(self) -> Reading:
        """How a text becomes tokens."""
        return replace(super().reading(), add_special_tokens=self.add_special_tokens)

    def sampling(self, sizes: VectorSizes) -> Sampling:
        """What the engine is asked; raises 400 for vectors of a length that the model does not make."""
        if self.dimensions is not None and (reason := sizes.why_not(self.dimensions)):
            raise invalid(f"dimensions is {self.dimensions}: {reason}.", "dimensions")
        pooling = Pooling(self.dimensions, self.use_activation)
        return Sampling(temperature=0.0, max_tokens=1, ignore_eos=True, pooling=pooling)
