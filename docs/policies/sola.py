"""SOLA (Hong et al., MLSys 2025): `--policy docs/policies/sola.py:Sola`, for requests with `slo_tpot_s`."""

from dataclasses import dataclass

from sundog import Policy, Request, View


@dataclass(frozen=True)
class Sola(Policy):
    """A chunk of a prompt is as large as the pace of running answers allows, by what a step would take."""

    least_tokens: int = 128

    def quota(self, request: Request, view: View) -> int | None:
        answers = [other for other in view.running.values() if view.num_output_tokens(other)]
        paces_s = [other.submit.slo_tpot_s for other in answers if other.submit.slo_tpot_s]
        if not paces_s:
            return None
        chunk = view.limits.max_num_batched_tokens
        while chunk > self.least_tokens and (view.step_s(chunk, len(answers)) or 0.0) > min(paces_s):
            chunk //= 2
        return max(chunk, self.least_tokens)
