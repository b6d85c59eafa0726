"""Headers that can replace a field of the body; the header wins, as in vLLM.

Gateways can set them without parsing bodies. They are the source of what policies read about a request.
"""

from dataclasses import dataclass, replace
from typing import Annotated, Self, TypeVar

from pydantic import Field, TypeAdapter, ValidationError

from sundog.actors.api.bodies.parsing import Int64, Name, NumTokens, Seconds
from sundog.actors.api.bodies.sampling import TermsBody
from sundog.actors.api.emulation import Headers
from sundog.actors.api.errors import invalid, shown
from sundog.actors.api.limits import KeyHolder

REQUEST_ID = "X-Request-Id"
PRIORITY = "X-Vllm-Priority"


T = TypeVar("T")
D = TypeVar("D")


NAME: TypeAdapter[str] = TypeAdapter(Name)
INTEGER: TypeAdapter[int] = TypeAdapter(Annotated[Int64, Field(strict=False)])
COUNT: TypeAdapter[int] = TypeAdapter(Annotated[NumTokens, Field(strict=False)])
SECONDS: TypeAdapter[float] = TypeAdapter(Annotated[Seconds, Field(strict=False, allow_inf_nan=False)])


@dataclass(frozen=True, slots=True)
class RequestTerms:
    """Terms of a request: everything that policies read except its lengths."""

    priority: int
    tenant: str | None
    session: str | None
    slo_ttft_s: float | None
    slo_tpot_s: float | None
    slo_e2e_s: float | None
    predicted_tokens: int | None

    @classmethod
    def of(cls, headers: Headers, body: TermsBody) -> Self:
        """Return the terms of a request; raises 400 for a header out of bounds."""
        return cls(
            priority=_read(headers, PRIORITY, INTEGER, body.priority),
            tenant=_read(headers, "X-Tenant", NAME, body.tenant),
            session=_read(headers, "X-Session-Id", NAME, body.session),
            slo_ttft_s=_read(headers, "X-Slo-Ttft-S", SECONDS, body.slo_ttft_s),
            slo_tpot_s=_read(headers, "X-Slo-Tpot-S", SECONDS, body.slo_tpot_s),
            slo_e2e_s=_read(headers, "X-Slo-E2e-S", SECONDS, body.slo_e2e_s),
            predicted_tokens=_read(headers, "X-Predicted-Tokens", COUNT, body.predicted_tokens),
        )

    def of_client(self, client: KeyHolder | None) -> "RequestTerms":
        """Return the terms with those of the client's key, which override the client's own."""
        if client is None:
            return self
        tenant = self.tenant if client.tenant is None else client.tenant
        return replace(
            self, tenant=tenant, priority=self.priority if client.priority is None else client.priority
        )


def request_id_of(headers: Headers, body: TermsBody) -> str | None:
    """Return the request id that the client chose, if any."""
    return _read(headers, REQUEST_ID, NAME, body.request_id) if headers.get(REQUEST_ID) else body.request_id


def _read(headers: Headers, name: str, kind: TypeAdapter[T], otherwise: D) -> T | D:
    given = headers.get(name)
    if given is None:
        return otherwise
    try:
        return kind.validate_python(given)
    except ValidationError as error:
        message = error.errors(include_url=False)[0]["msg"].removeprefix("Input ")
        raise invalid(f"{name} is {shown(given)}: it {message}.", name) from None
