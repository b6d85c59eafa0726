"""What only an emulated server has: `sundog serve --simulate`."""

from actors.config.injected import parse_injection
from actors.core.records import dataclass
from sundog.options.kinds import Parsed, Real, Text
from sundog.options.row import option

EMULATION = "Emulation"


@dataclass(frozen=True, slots=True, kw_only=True)
class Emulation:
    """What answers say, and how its clock runs."""

    tokenizer: str | None = option(
        None,
        Text("DIR", is_path=True),
        "A folder with a tokenizer.json, to count prompts with; else the embedded model's.",
        section=EMULATION,
    )
    answers: str = option(
        "texts",
        Text("texts|echo|FILE.jsonl", is_path=True),
        'What is said: our texts, the prompt, or a file of {"prompt": …, "answer": …} lines.',
        section=EMULATION,
    )
    inject: tuple[str, ...] = option(
        (),
        Parsed(parse_injection, "FAULT@RATE"),
        "Let a part of requests fail: 429, 503, slow=SECONDS, cut=TOKENS, dead-engine; as in 503@0.01.",
        section=EMULATION,
        many=True,
    )
    kv_transfer_gb_per_s: float = option(
        50.0,
        Real(0, 1e6, above=True),
        "What brings keys and values from a server that prefills: 50 are 400 Gbit/s.",
        section=EMULATION,
    )
    time_scale: float = option(
        1.0,
        Real(0.01, 100),
        "Let the server's clock run this many times as fast as the wall's.",
        section=EMULATION,
    )
