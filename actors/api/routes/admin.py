"""Routes that change a running server, as in vLLM: reset the prefix cache, abort, pause, drain, adapters.

Operators' routes need `--admin-key` in the header Authorization. Without such a key they are closed, since
they end other people's requests. Adapters are loaded and unloaded only if the server was started for it;
requests with an unloaded adapter finish, and its memory is freed by a later change.
"""

import hmac
import itertools
import logging

import trio
from quart import Blueprint, Response, request

from sundog.actors.api.bodies.operators import AbortBody, LoadAdapterBody, UnloadAdapterBody
from sundog.actors.api.bodies.parsing import parse_request
from sundog.actors.api.context import ApiContext
from sundog.actors.api.errors import INVALID_INPUT, ApiError, invalid, shown
from sundog.actors.api.keys import OPERATORS
from sundog.actors.api.requests import current_request
from sundog.actors.api.responses import json_response, text_response
from sundog.actors.core.logged import logged
from sundog.actors.core.params.sampling import Adapter
from sundog.actors.messages import ChangeAdapters, Done, Drain, Freeze, Refused, ResetPrefixCache

PAUSE_MODES = ("abort", "wait", "keep")
FLAGS = {"true": True, "1": True, "false": False, "0": False}


def admin_routes(context: ApiContext) -> Blueprint:
    """Return the routes behind the admin key."""
    routes = Blueprint(OPERATORS, __name__)
    control = context.control

    @routes.before_request
    async def check() -> None:
        _check_key(context.admin_key)

    @routes.post("/reset_prefix_cache")
    async def reset_prefix_cache() -> Response:
        if _flag("reset_external", False):
            raise invalid("reset_external is true: only the engine has a cache.", "reset_external")
        reset = ResetPrefixCache(_flag("reset_running_requests", False))
        return json_response({"success": isinstance(await context.llm.ask(reset), Done)})

    @routes.post("/abort_requests")
    async def abort_requests() -> Response:
        body = await parse_request(AbortBody, current_request(), context)
        num_aborted = await control.abort(tuple(body.request_ids or ()) or None)
        return json_response({"status": "aborted", "aborted": num_aborted})

    @routes.post("/pause")
    async def pause() -> Response:
        mode = request.args.get("mode", "abort")
        if mode not in PAUSE_MODES:
            raise invalid(f"mode is {shown(mode)}: send {' or '.join(PAUSE_MODES)}.", "mode")
        clears = _flag("clear_cache", True)
        await _pause(context, mode)
        if clears:
            await context.llm.ask(ResetPrefixCache(reset_running=True))
        return json_response({"status": "paused"})

    @routes.post("/resume")
    async def resume() -> Response:
        await context.llm.ask(Freeze(is_frozen=False))
        await control.release()
        return json_response({"status": "resumed"})

    @routes.get("/is_paused")
    async def show_paused() -> Response:
        return json_response({"is_paused": context.in_flight.is_paused})

    @routes.post("/drain")
    async def drain() -> Response:
        return await _drain(context, is_draining=True)

    @routes.post("/undrain")
    async def undrain() -> Response:
        return await _drain(context, is_draining=False)

    return routes


async def _pause(context: ApiContext, mode: str) -> None:
    """Wait until no request is unfinished; with `keep`, until no engine computes."""
    await context.control.hold()
    if mode == "keep":
        await context.llm.ask(Freeze())
        return
    if mode == "abort":
        await context.control.abort(None)
    await context.control.until_empty()


async def _drain(context: ApiContext, *, is_draining: bool) -> Response:
    """Begin or undo a drain and return the engine's status; raises 400 for an unknown engine."""
    engine = _engine()
    answer = await context.llm.ask(Drain(engine, is_draining))
    if isinstance(answer, Refused) and answer.param is not None:
        raise invalid(answer.reason, answer.param)
    is_drained = is_draining and isinstance(answer, Done)
    return json_response({"status": "drained" if is_drained else "undrained", "engine": engine})


def _engine() -> int:
    """Return the engine's number, as in /metrics."""
    given = request.args.get("engine", "")
    if not (given.isascii() and given.isdigit() and len(given) < 6):
        raise invalid(f"engine is {shown(given)}: give the number of an engine, such as 0.", "engine")
    return int(given)


def _flag(name: str, default: bool) -> bool:
    given = request.args.get(name)
    if given is None:
        return default
    if given.lower() not in FLAGS:
        raise invalid(f"{name} is {shown(given)}: send true or false.", name)
    return FLAGS[given.lower()]


def _check_key(admin_key: str | None) -> None:
    """Raise 403 without an admin key, and 401 for a wrong one; every guess takes the same time."""
    if admin_key is None:
        raise ApiError(
            403,
            "This server was started without --admin-key, so admin routes are closed.",
            code="no_admin_key",
        )
    scheme, _, given = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not hmac.compare_digest(given.encode(), admin_key.encode()):
        raise ApiError(
            401,
            "Wrong admin key: send it as 'Authorization: Bearer KEY'.",
            param=None,
            code="invalid_admin_key",
            headers={"WWW-Authenticate": "Bearer"},
        )


log = logging.getLogger("sundog.api")


def lora_routes(context: ApiContext) -> Blueprint:
    """Return the two routes for adapters."""
    routes = Blueprint("lora", __name__)
    adapters = context.adapters
    versions, one_at_a_time = itertools.count(1), trio.Lock()

    @routes.before_request
    async def check() -> None:
        if not context.model.loads_adapters:
            raise ApiError(
                404,
                f"Unknown URL: {request.method} {request.path}; start the server with --enable-lora"
                " --allow-runtime-lora-updating",
            )

    @routes.post("/v1/load_lora_adapter")
    async def load_adapter() -> Response:
        body = await parse_request(LoadAdapterBody, current_request(), context)
        name = body.lora_name
        if name == context.model.name:
            raise _invalid(f"The lora adapter '{name}' conflicts with a served base model.")
        if name in adapters and not body.load_inplace:
            raise _invalid(
                f"The lora adapter '{name}' has already been loaded. If you want to load the adapter in"
                " place, set 'load_inplace' to True."
            )
        adapter = Adapter(name, body.lora_path, next(versions))
        async with one_at_a_time:
            answer = await context.llm.ask(ChangeAdapters(loaded=(adapter,)))
            if isinstance(answer, Refused):
                await context.llm.ask(ChangeAdapters(unloaded=(adapter,)))
                raise _invalid(f"The lora adapter '{name}' cannot be loaded: {answer.reason}")
            older, adapters[name] = adapters.get(name), adapter
            if older is not None:
                await context.llm.ask(ChangeAdapters(unloaded=(older,)))
        log.info("adapter %s is loaded from %s", logged(name), logged(body.lora_path))
        return _done(f"Success: LoRA adapter '{name}' added successfully.")

    @routes.post("/v1/unload_lora_adapter")
    async def unload_adapter() -> Response:
        body = await parse_request(UnloadAdapterBody, current_request(), context)
        adapter = adapters.pop(body.lora_name, None)
        if adapter is None:
            raise ApiError(404, f"The lora adapter '{body.lora_name}' cannot be found.")
        async with one_at_a_time:
            await context.llm.ask(ChangeAdapters(unloaded=(adapter,)))
        log.info("adapter %s is unloaded", logged(body.lora_name))
        return _done(f"Success: LoRA adapter '{body.lora_name}' removed successfully.")

    return routes


def _invalid(message: str) -> ApiError:
    return ApiError(400, message, code=INVALID_INPUT)


def _done(message: str) -> Response:
    return text_response(message.encode(), "text/plain; charset=utf-8")
