"""Quotas: `--policy docs/small_chunks.py:SmallChunks`."""

from dataclasses import dataclass

from sundog import Policy, Request, View


@dataclass(frozen=True)
class SmallChunks(Policy):
    """A prompt is computed in small chunks while answers run, so that they flow steadily."""

    chunk_tokens: int = 128

    def quota(self, request: Request, view: View) -> int | None:
        return self.chunk_tokens if len(view.running) > 1 else None
