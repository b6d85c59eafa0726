"""The fields that say which model is asked, and on what terms."""

from actors.api.bodies.bounds import Int64, ModelName, Name, NumTokens, Seconds
from actors.api.bodies.parsing import JsonObject


class TermsBody(JsonObject):
    """What every route that takes prompts has."""

    model: ModelName | None = None
    request_id: Name | None = None
    priority: Int64 = 0
    cache_salt: Name | None = None
    tenant: Name | None = None
    session: Name | None = None
    slo_ttft_s: Seconds | None = None
    slo_tpot_s: Seconds | None = None
    slo_e2e_s: Seconds | None = None
    predicted_tokens: NumTokens | None = None
    kv_transfer_params: dict[str, object] | None = None
