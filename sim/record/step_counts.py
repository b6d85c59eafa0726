"""What each step of one replica computed, and what waited meanwhile, as counts, sums and variances.

Everything is O(what changed): decoding requests grow together, so the sum of their squares follows from the
sums of the step before. The fields are those of forward-pass metrics, version 1, as SGLang publishes them
(its pull request 22789) and vLLM is about to (52061): prefill lengths are those of whole prompts, and the KV
tokens of a request are those computed before the step.
"""

from dataclasses import dataclass

from actors.core.batch import Batch
from actors.core.request import Submit

Metrics = dict[str, int | float]


@dataclass(slots=True)
class Sizes:
    """Some sizes: how many, their sum and the sum of their squares, all whole numbers."""

    num: int = 0
    total: int = 0
    squares: int = 0

    def add(self, size: int) -> None:
        self.num += 1
        self.total += size
        self.squares += size * size

    def remove(self, size: int) -> None:
        self.num -= 1
        self.total -= size
        self.squares -= size * size

    def grow(self) -> None:
        """Each becomes larger by one."""
        self.squares += 2 * self.total + self.num
        self.total += self.num

    @property
    def variance(self) -> float:
        """The population's."""
        return (self.squares * self.num - self.total**2) / self.num**2 if self.num else 0.0


class Queued:
    """Requests that wait: new ones by their prompts, preempted ones by the tokens that they have."""

    def __init__(self) -> None:
        self._new: dict[str, int] = {}
        self._preempted: dict[str, int] = {}
        self._prefill, self._decode = Sizes(), Sizes()

    def submit(self, submit: Submit) -> None:
        self.leave(submit.request_id)
        self._new[submit.request_id] = submit.num_prompt_tokens
        self._prefill.add(submit.num_prompt_tokens)

    def preempt(self, name: str, num_tokens: int) -> None:
        self._preempted[name] = num_tokens
        self._decode.add(num_tokens)

    def leave(self, name: str) -> None:
        """It waits no longer, if it did."""
        for names, sizes in ((self._new, self._prefill), (self._preempted, self._decode)):
            size = names.pop(name, None)
            if size is not None:
                sizes.remove(size)

    def metrics(self) -> Metrics:
        return {
            "num_prefill_requests": self._prefill.num,
            "sum_prefill_tokens": self._prefill.total,
            "var_prefill_length": self._prefill.variance,
            "num_decode_requests": self._decode.num,
            "sum_decode_kv_tokens": self._decode.total,
            "var_decode_kv_tokens": self._decode.variance,
        }


class Scheduled:
    """The running requests of one replica; `begin` a batch, then `advance` step by step."""

    def __init__(self, queued: Queued) -> None:
        self._queued = queued
        self._clock = 0
        self._decoding: dict[str, int] = {}
        """Computed tokens less the clock."""
        self._prompt: dict[str, int] = {}
        self._prefilling: dict[str, int] = {}
        """Computed tokens."""
        self._kv = Sizes()
        self._joining: list[str] = []
        self._idle: list[tuple[str, int]] = []
        self._prefill, self._num_new, self._num_before = Sizes(), 0, 0

    def begin(self, batch: Batch) -> None:
        """Fold the diff in."""
        for name in batch.finished:
            self._forget(name)
            self._queued.leave(name)
        for name in batch.preempted:
            self._queued.preempt(name, self._forget(name))
        self._prefill, self._num_new, self._num_before = Sizes(), 0, 0
        for admission in batch.admitted:
            self._queued.leave(admission.request_id)
            self._prompt[admission.request_id] = admission.num_prompt_tokens
            self._prefilling[admission.request_id] = admission.num_computed_tokens
        for chunk in batch.chunks:
            before = self._prefilling[chunk.request_id]
            self._prefill.add(self._prompt[chunk.request_id])
            self._num_new += chunk.num_tokens
            self._num_before += before
            self._prefilling[chunk.request_id] = before + chunk.num_tokens
            if chunk.samples:
                self._joining.append(chunk.request_id)
        for name in batch.idle:
            size = self._decoding[name] + self._clock
            self._kv.remove(size)
            self._idle.append((name, size))

    def metrics(self) -> Metrics:
        """Those of the step that runs."""
        return {
            "num_prefill_requests": self._prefill.num,
            "sum_prefill_tokens": self._num_new,
            "var_prefill_length": self._prefill.variance,
            "sum_prefill_kv_tokens": self._num_before,
            "num_decode_requests": self._kv.num,
            "sum_decode_kv_tokens": self._kv.total,
            "var_decode_kv_tokens": self._kv.variance,
        }

    def advance(self, accepted: tuple[tuple[str, int], ...] = ()) -> None:
        """A step was done; `accepted` counts the accepted drafts of requests."""
        for name, count in accepted:
            size = self._decoding[name] + self._clock
            self._kv.remove(size)
            self._kv.add(size + count)
            self._decoding[name] += count
        self._clock += 1
        self._kv.grow()
        self._prefill, self._num_new, self._num_before = Sizes(), 0, 0
        joining = [(name, self._prefilling.pop(name)) for name in self._joining]
        for name, size in (*joining, *self._idle):
            self._decoding[name] = size - self._clock
            self._kv.add(size)
        self._joining, self._idle = [], []

    def _forget(self, name: str) -> int:
        """Take a request out; returns its computed tokens."""
        self._prompt.pop(name, None)
        size = self._decoding.pop(name, None)
        if size is None:
            return self._prefilling.pop(name, 0)
        self._kv.remove(size + self._clock)
        return size + self._clock
