"""Options of servers: common ones, those of a real model, those of an emulated one."""

import json
from dataclasses import dataclass

from sundog.actors.config.injected import parse_injection
from sundog.actors.config.kv_events import parse_kv_events_config
from sundog.actors.config.pooler import parse_pooler_config
from sundog.actors.core.params.sampling import Adapter
from sundog.options.door import LIMITS
from sundog.options.names import gpu_names, model_names
from sundog.options.row import RECORDING, AnyText, OneOf, Parsed, Real, Switch, Whole, option
from sundog.options.simulation import parse_pool

RAY = "Ray"


def parse_on(text: str) -> str | None:
    """Return the address of a Ray cluster, `auto` for one on this machine, None to start one."""
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
    """Return the option `--on`, with the help text for a command."""
    on: str | None = option(None, Parsed(parse_on, "ray[:ADDRESS]"), explained, section=RAY, kept=kept)
    return on


KEYS = ("name", "path", "base_model_name")
FORMS = 'give NAME=DIR, or {"name": "NAME", "path": "DIR", "base_model_name": "MODEL"}'


@dataclass(frozen=True, slots=True)
class LoraModule:
    """Adapter with its declared base model."""

    adapter: Adapter
    base: str | None = None


def parse_lora_module(text: str) -> LoraModule:
    """Parse an adapter module; ValueError describes valid texts."""
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
MODEL = "Model"
EMULATION = "Emulation"


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """Options of a server that speaks HTTP, real or emulated."""

    host: str = option("127.0.0.1", AnyText("ADDRESS"), "Address to listen on.")
    port: int = option(8000, Whole(0, 65535), "Port to listen on; 0 takes a free one.")
    served_model_name: tuple[str, ...] = option(
        (), AnyText("NAME"), "Names of the model for clients; answers have the first.", many=True
    )
    revision: str | None = option(
        None,
        AnyText("REVISION"),
        "Branch, tag or commit of a model that is fetched by its name.",
        section=MODEL,
    )
    chat_template: str | None = option(
        None, AnyText("FILE"), "Chat template (Jinja) to use instead of the model's own.", section=ANSWERS
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
        1,
        Whole(1, 2**27),
        "Tokens per chunk of a stream; the first and the last are sent at once.",
        section=ANSWERS,
    )
    max_logprobs: int = option(
        20,
        Whole(-1, 2**27),
        "Most log probabilities per token that a request may ask for; -1 is no limit.",
        section=ANSWERS,
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
        "Adapters as NAME=FOLDER or NAME=OWNER/NAME (in peft's format), or as JSON objects.",
        section=LORA,
        many=True,
    )
    max_lora_rank: int = option(16, Whole(1, 512), "Highest rank of an adapter.", section=LORA)
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
        "API key that clients must send under /v1; SUNDOG_API_KEY keeps it out of sight.",
        secret=True,
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
        secret=True,
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
        "Processes that serve HTTP at the one port, in front of the same engines. In emulate also simulated"
        " API processes of each engine, unless --front-cost processes=N gives their number.",
        section=PROCESSES,
        names=("--api-server-count",),
    )
    stall_timeout_s: float = option(
        10.0,
        Real(1, 86_400),
        "Restart an engine process that is silent for this many seconds; emulated: end the server.",
        flag="--stall-timeout",
        section=PROCESSES,
        rare=True,
    )
    grace_s: float = option(
        30.0,
        Real(0, 86_400),
        "Seconds that running streams may take after SIGTERM.",
        flag="--grace",
        section=ACCESS,
    )
    data_parallel_rank: int = option(
        0,
        Whole(0, 4095),
        "The number of the first engine, in metrics and KV events.",
        section=CONTROL,
        rare=True,
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
        """Whether clients may load and unload adapters."""
        return self.enable_lora and self.allow_runtime_lora_updating


@dataclass(frozen=True, slots=True, kw_only=True)
class RealServing(Serving):
    """Options of a server whose model is computed by torch."""

    model: str | None = option(
        None,
        AnyText("MODEL", is_path=True),
        "The model's folder, GGUF file, or name on the hub, as the argument.",
        section=MODEL,
    )
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
        section=ANSWERS,
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
        False,
        Switch(pair=False),
        "Compute the model in the server's own process.",
        section=PROCESSES,
        rare=True,
    )
    load_timeout_s: float = option(
        600.0,
        Real(1, 86_400),
        "End an engine process that is not ready, with its ranks, after this many seconds.",
        flag="--load-timeout",
        section=PROCESSES,
        rare=True,
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
        "A pool of M engines, instead of --replicas. ROLE is prefill, decode (continues those prompts) or "
        "both.",
        section=PROCESSES,
        many=True,
    )
    on: str | None = on_ray("Ray cluster to place replicas on: ray starts one here; ray:HOST:PORT joins one.")
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
        rare=True,
    )
    ray_wait_s: float = option(
        600.0,
        Real(0, 86_400),
        "Seconds to wait for a node with room for a replica.",
        flag="--ray-wait",
        section=RAY,
        rare=True,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class EmulatedServing(Serving):
    """Options of a server that answers at the pace of an absent GPU."""

    model: str | None = option(
        None,
        AnyText("MODEL", is_path=True),
        "A known model, a folder, or a name on the hub, as the argument.",
        section=MODEL,
        completes=model_names,
    )
    gpu: str = option(
        "h100",
        AnyText("GPU", is_path=True),
        "Answer at the pace of this GPU, or of the engine in a calibrated FILE.toml.",
        completes=gpu_names,
    )
    tokenizer: str | None = option(
        None,
        AnyText("DIR", is_path=True),
        "Folder, or name on the hub, of the tokenizer that counts prompt tokens; else the embedded model's.",
        section=EMULATION,
    )
    answers: str = option(
        "texts",
        AnyText("texts|echo|FILE.jsonl", is_path=True),
        'Texts of answers: built-in ones, the prompt, or a file of {"prompt": …, "answer": …} lines.',
        section=EMULATION,
    )
    inject: tuple[str, ...] = option(
        (),
        Parsed(parse_injection, "FAULT@RATE"),
        "Let a share of requests fail: 429, 503, slow=SECONDS, cut=TOKENS, dead-engine; as in 503@0.01.",
        section=EMULATION,
        many=True,
    )
    time_scale: float = option(
        1.0,
        Real(0.01, 100),
        "Let the server's clock run this many times as fast as the wall's.",
        section=EMULATION,
    )
