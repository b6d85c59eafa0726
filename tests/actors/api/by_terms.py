"""User policies for a served test; they order requests by fields that clients send."""

from sundog.actors.core.policies import Policy, Request, View


class ByTerms(Policy):
    """Tenants in the order of their names, then the tightest of all targets, then the shortest guess."""

    def rank(self, request: Request, view: View) -> tuple[str, float, int]:
        submit = request.submit
        targets = [each for each in (submit.slo_ttft_s, submit.slo_tpot_s, submit.slo_e2e_s) if each]
        return (submit.tenant or "z", min(targets, default=1e9), submit.predicted_tokens or 10**9)
