"""The cost of reaching an engine core in a process of its own: numbers for the simulated graph."""

from dataclasses import dataclass, fields

from sundog.actors.core.config import ConfigError


@dataclass(frozen=True, slots=True)
class HopCosts:
    """Seconds: `submit` for each request or abort from the Router to the Scheduler, the Router's own time
    included; `token` more for each token of its prompt, which is serialised; `output` for what comes back."""

    submit: float = 0.0
    token: float = 0.0
    output: float = 0.0

    def __post_init__(self) -> None:
        for field in fields(self):
            if not 0 <= getattr(self, field.name) <= 1:
                raise ConfigError(f"{field.name} is {getattr(self, field.name)}: give seconds from 0 to 1")

    @property
    def delays_requests(self) -> bool:
        """True if requests take any time to reach the Scheduler."""
        return self.submit > 0 or self.token > 0


NO_HOPS = HopCosts()


def parse_hop_costs(text: str) -> HopCosts:
    """`submit=0.0001,token=1e-8,output=0.00005`; raises ValueError that says what is known."""
    names, values = [field.name for field in fields(HopCosts)], dict[str, float]()
    for part in text.split(","):
        name, _, value = part.partition("=")
        if name not in names or name in values:
            wrong = "twice" if name in values else f"which is none of {', '.join(names)}"
            raise ValueError(f"it has {name!r}, {wrong}")
        try:
            values[name] = float(value)
        except ValueError:
            raise ValueError(f"{name} is {value!r}: give seconds from 0 to 1") from None
    return HopCosts(**values)
