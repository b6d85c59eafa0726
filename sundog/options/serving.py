"""The options of servers: those that every server has, those of a real model, those of an emulated one."""

import json
from dataclasses import dataclass

from sundog.actors.config.injected import parse_injection
from sundog.actors.config.kv_events import parse_kv_events_config
from sundog.actors.config.pooler import parse_pooler_config
from sundog.actors.core.params.sampling import Adapter
from sundog.options.door import LIMITS
from sundog.options.row import RECORDING, AnyText, OneOf, Parsed, Real, Switch, Whole, option
from sundog.options.simulation import parse_pool

RAY = "Ray"


def parse_on(text: str) -> str | None:
    """The address of a Ray cluster, `auto` for one that runs on this machine, None for one of our own."""
    name, _, address = text.partition(":")
    if name != "ray":
        raise ValueError("give ray, ray:auto or ray:HOST:PORT")
    if not address:
        return None
    if address.startswith("ray://"):
        raise ValueError("a client of Ray cannot be placed on its nodes: give HOST:PORT without ray://")
    host, _, port = address.rpartition(":")
    if address != "auto" and not (host and port.isdecimal() and 0 < int(port) < 65536):
        raise ValueError("give ray, ray:auto or ray:HOST:PORT")
    return address


def on_ray(explained: str, *, kept: bool = True) -> str | None:
    """The option, with what it means for a command."""
    on: str | None = option(None, Parsed(parse_on, "ray[:ADDRESS]"), explained, section=RAY, kept=kept)
    return on


KEYS = ("name", "path", "base_model_name")
FORMS = 'give NAME=DIR, or {"name": "NAME", "path": "DIR", "base_model_name": "MODEL"}'


@dataclass(frozen=True, slots=True)
class LoraModule:
    """An adapter, and the model that it says it changes."""

    adapter: Adapter
    base: str | None = None


def parse_lora_module(text: str) -> LoraModule:
    """The module that a text names; ValueError says what would be right."""
    if not text.lstrip().startswith("{"):
        name, _, path = text.partition("=")
        if not (name and path):
            raise ValueError(FORMS)
        return LoraModule(Adapter(name, path))
    try:
        given = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError(FORMS) from None
    given = {key: value for key, value in given.items() if value is not None}
    unknown = [key for key in given if key not in KEYS]
    if unknown:
        raise ValueError(f"{unknown[0]} is unknown; {FORMS}")
    if not all(isinstance(value, str) and value for value in given.values()) or not {"name", "path"} <= set(
        given
    ):
        raise ValueError(FORMS)
    return LoraModule(Adapter(given["name"], given["path"]), given.get("base_model_name"))


ACCESS = "Access"
LORA = "LoRA adapters"
PROCESSES = "Processes"
ANSWERS = "Answers"
LOGGING = "Logging"
CONTROL = "Control planes"
EMULATION = "Emulation"


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """A server that speaks HTTP, whatever computes its answers."""

    host: str = option("127.0.0.1", AnyText("ADDRESS"), "The address to listen at.")
    port: int = option(8000, Whole(0, 65535), "The port to listen at; 0 takes a free one.")
    served_model_name: tuple[str, ...] = option(
        (), AnyText("NAME"), "Names of the model for clients; answers have the first.", many=True
    )
    chat_template: str | None = option(
        None, AnyText("FILE"), "A chat template in Jinja, instead of the model's own.", section=ANSWERS
    )
    tool_call_parser: str | None = option(
        None,
        OneOf(("hermes", "llama3_json", "mistral")),
        "Format of the model's tool calls; by default read from its chat template.",
    )
    enable_auto_tool_choice: bool = option(
        False,
        Switch(pair=False),
        "Let the model decide when to call a tool. On whenever the format of its calls is known.",
        section=ANSWERS,
    )
    reasoning_parser: str | None = option(
        None, OneOf(("deepseek_r1", "qwen3")), "Format of the model's reasoning."
    )
    stream_interval: int = option(
        1, Whole(1, 2**27), "Tokens per chunk of a stream; the first and the last are sent at once."
    )
    max_logprobs: int = option(
        20, Whole(-1, 2**27), "Refuse requests for more log probabilities a token; -1 sets no bound."
    )

    predictor: str | None = option(
        None,
        AnyText("FILE.py:NAME"),
        "Predictor of output lengths for the policy, if clients send none.",
        section="Engine, further",
    )
    compat: str = option("vllm", OneOf(("vllm", "openai")), "Error format: vllm or openai.")

    enable_lora: bool = option(False, Switch(pair=False), "Serve LoRA adapters.", section=LORA)
    lora_modules: tuple[str, ...] = option(
        (),
        Parsed(parse_lora_module, "NAME=DIR"),
        "Adapters as NAME=FOLDER (in peft's format), or as JSON objects.",
        section=LORA,
        many=True,
    )
    max_lora_rank: int = option(16, Whole(1, 512), "Refuse adapters of a higher rank.", section=LORA)
    max_loras: int | None = option(
        None,
        Whole(1, 1024),
        "The number of adapters that /metrics reports to gateways; a step takes any number of them.",
        section=LORA,
    )
    allow_runtime_lora_updating: bool = option(
        False,
        Switch(pair=False),
        "Let clients load and unload adapters at run time.",
        section=LORA,
        envvar="VLLM_ALLOW_RUNTIME_LORA_UPDATING",
    )
    api_key: str | None = option(
        None,
        AnyText("KEY"),
        "API key that clients must send under /v1.",
        section=ACCESS,
        envvar="SUNDOG_API_KEY",
    )
    api_keys: str | None = option(
        None,
        AnyText("FILE", is_path=True),
        "A TOML file of clients' keys, with tenants and limits; SIGHUP has it read again.",
        section=ACCESS,
    )
    admin_key: str | None = option(
        None,
        AnyText("KEY"),
        "Key for /pause, /abort_requests and the like, which are refused without it.",
        section=ACCESS,
        envvar="SUNDOG_ADMIN_KEY",
    )
    max_body_mib: int = option(
        16,
        Whole(1, 1024),
        "The largest body of a request, in MiB; a larger one is refused with 413.",
        section=LIMITS,
    )
    api_processes: int = option(
        1,
        Whole(1, 64),
        "Processes that serve HTTP at the one port, in front of the same engines.",
        section=PROCESSES,
        names=("--api-server-count",),
    )
    stall_timeout_s: float = option(
        10.0,
        Real(1, 86_400),
        "Restart an engine process that is silent for this many seconds; emulated: end the server.",
        flag="--stall-timeout",
        section=PROCESSES,
    )
    grace_s: float = option(
        30.0,
        Real(0, 86_400),
        "Seconds that running streams get after SIGTERM.",
        flag="--grace",
        section=ACCESS,
    )
    data_parallel_rank: int = option(
        0, Whole(0, 4095), "The number of the first engine, in metrics and KV events.", section=CONTROL
    )
    kv_events_config: str | None = option(
        None,
        Parsed(parse_kv_events_config, "JSON"),
        'Publish KV events over ZMQ, as vLLM does: {"enable_kv_cache_events": true, "endpoint": "tcp://*:5557"}.',
        section=CONTROL,
    )

    log_requests: bool = option(
        True,
        Switch(),
        "Log a line for each request at its end: tokens, times, how it ended.",
        section=LOGGING,
    )
    disable_log_stats: bool = option(
        False, Switch(pair=False), "Do not log each engine's throughput every ten seconds.", section=LOGGING
    )
    log_format: str = option(
        "text", OneOf(("text", "json")), "How the log is written: lines for people, or JSON.", section=LOGGING
    )
    otlp_traces_endpoint: str | None = option(
        None,
        AnyText("URL"),
        "Send OpenTelemetry spans of requests there: http://HOST:4318, or grpc://HOST:4317.",
        section=LOGGING,
    )

    record: str | None = option(
        None, AnyText("DIR"), "Folder to write a journal to, for `sundog explain`.", section=RECORDING
    )
    messages: bool = option(
        False,
        Switch(pair=False),
        "With --record: also record every message between actors.",
        section=RECORDING,
    )

    @property
    def loads_adapters(self) -> bool:
        """True if clients may load and unload adapters."""
        return self.enable_lora and self.allow_runtime_lora_updating


@dataclass(frozen=True, slots=True, kw_only=True)
class RealServing(Serving):
    """A server whose model is computed by torch."""

    model: str | None = option(None, AnyText("MODEL"), "The model's folder, as the argument.")
    device: str = option(
        "auto", OneOf(("auto", "cpu", "cuda")), "Where the model runs; auto: on a GPU if torch sees one."
    )
    runner: str = option(
        "auto",
        OneOf(("auto", "generate", "pooling")),
        "Output of the model: text, or vectors (pooling); auto reads its files.",
    )
    pooler_config: str | None = option(
        None,
        Parsed(parse_pooler_config, "JSON"),
        'Pooling of vectors: {"pooling_type": "MEAN"}, CLS or LAST.',
    )
    generation_config: str = option(
        "auto",
        OneOf(("auto", "vllm")),
        "Sampling defaults: those of the model's generation_config.json, or neutral ones (vllm).",
    )
    num_threads: int | None = option(
        None,
        Whole(1, 4096),
        "Threads that a replica on the CPU computes with; all cores, but one fewer for a small model.",
        section=PROCESSES,
    )
    in_process: bool = option(
        False, Switch(pair=False), "Compute the model in the server's own process.", section=PROCESSES
    )
    load_timeout_s: float = option(
        600.0,
        Real(1, 86_400),
        "End an engine process that is not ready, with its ranks, after this many seconds.",
        flag="--load-timeout",
        section=PROCESSES,
    )
    faults: str | None = option(
        None,
        AnyText("FILE", is_path=True),
        "Kill and delay engine processes by the schedule of FILE.toml (docs/fleets.md).",
        section=PROCESSES,
    )
    pool: tuple[str, ...] = option(
        (),
        Parsed(parse_pool, "ROLE=cpu:xM"),
        "A pool of M engines, instead of --replicas: prefill and decode, which hand prompts over, or both.",
        section=PROCESSES,
        many=True,
    )
    on: str | None = on_ray("Place each replica on a cluster: ray begins one here, ray:HOST:PORT is there.")
    ray_cpus: int | None = option(
        None,
        Whole(1, 1024),
        "CPUs, and threads, of each replica; by default this machine's are shared, else 1.",
        section=RAY,
    )
    ray_host: str | None = option(
        None,
        AnyText("ADDRESS"),
        "This machine's address for engines on others, if Ray's is wrong.",
        section=RAY,
    )
    ray_wait_s: float = option(
        600.0,
        Real(0, 86_400),
        "Seconds that a replica waits for a node with room for it.",
        flag="--ray-wait",
        section=RAY,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class EmulatedServing(Serving):
    """A server that answers at the pace of a GPU that is not there."""

    model: str | None = option(None, AnyText("MODEL"), "A known model, or a model's folder, as the argument.")
    gpu: str = option(
        "h100",
        AnyText("GPU", is_path=True),
        "Answer at the pace of this GPU, or of the engine in a calibrated FILE.toml.",
    )
    tokenizer: str | None = option(
        None,
        AnyText("DIR", is_path=True),
        "A folder with a tokenizer.json, to count prompts with; else the embedded model's.",
        section=EMULATION,
    )
    answers: str = option(
        "texts",
        AnyText("texts|echo|FILE.jsonl", is_path=True),
        'Canned answers: our texts, the prompt, or a file of {"prompt": …, "answer": …} lines.',
        section=EMULATION,
    )
    inject: tuple[str, ...] = option(
        (),
        Parsed(parse_injection, "FAULT@RATE"),
        "Let a part of requests fail: 429, 503, slow=SECONDS, cut=TOKENS, dead-engine; as in 503@0.01.",
        section=EMULATION,
        many=True,
    )
    time_scale: float = option(
        1.0,
        Real(0.01, 100),
        "Let the server's clock run this many times as fast as the wall's.",
        section=EMULATION,
    )
