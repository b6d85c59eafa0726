"""The PromptReader: tokenises long prompts away from the streams, one after another.

Tokenising takes a microsecond for every few characters, and on the loop it would stop every stream. So a long
prompt is a message, and is tokenised in a thread.
"""

from actors.front.intake import Intake
from actors.kernel.actor import Actor, Handled, Tap, answer
from actors.kernel.clock import run_blocking
from actors.messages import PromptRead, ReadPrompt


class PromptReader(Actor[ReadPrompt]):
    """Turns each Generate into the engine's Submits, or a refusal."""

    def __init__(self, name: str, intake: Intake, *, tap: Tap | None = None) -> None:
        super().__init__(name, tap=tap)
        self._intake = intake

    def handle(self, message: ReadPrompt) -> Handled:
        match message:
            case ReadPrompt():
                return answer(message, self._read(message))
            case _:
                self.unknown(message)

    async def _read(self, message: ReadPrompt) -> PromptRead:
        submits = await run_blocking(
            self._intake.submit,
            message.generate,
            message.request_id,
            message.arrival_s,
            abandon_on_cancel=True,
        )
        return PromptRead(message.request_id, message.number, submits)
