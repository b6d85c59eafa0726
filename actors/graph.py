"""Compose the graph: the same in every world, which differ by the backends and the clock."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import trio

from actors.actor import Actor, Ref, Tap
from actors.block_hash import block_hasher
from actors.config import EngineConfig
from actors.engine.engine_core import EngineRefs, run_engine_core
from actors.engine.runner import Backend
from actors.front.async_llm import AsyncLLM
from actors.front.codec import TextCodec, Vocabulary
from actors.router.router import Router


@asynccontextmanager
async def open_graph(
    config: EngineConfig,
    backends: Sequence[Backend],
    *,
    codec: TextCodec | None = None,
    vocabulary: Vocabulary | None = None,
    listeners: Sequence[Actor] = (),
    tap: Tap | None = None,
) -> AsyncIterator[Ref]:
    """The address of AsyncLLM over one engine per backend, started from the leaves.

    `listeners` hear every Submit and StepOutput. Leaving the block hangs up: what was accepted is
    finished, then the actors end from the root, the listeners last.
    """
    async with trio.open_nursery() as listening:
        holds = [listener.ref("graph") for listener in listeners]
        for listener in listeners:
            await listening.start(listener.live, name=listener.name)
        async with trio.open_nursery() as nursery:
            router = Router("router", config.router, tap=tap)
            async_llm = AsyncLLM(
                "async-llm",
                config,
                router.ref("async-llm"),
                codec=codec,
                vocabulary=vocabulary,
                hash_block=block_hasher(config.prefix_caching_hash_algo),
                listeners=[listener.ref("async-llm", counted=False) for listener in listeners],
                tap=tap,
            )
            client = async_llm.ref("client")
            for replica, backend in enumerate(backends):
                engine: EngineRefs = await nursery.start(
                    run_engine_core, replica, config, [backend], [async_llm, *listeners], tap
                )
                router.connect(engine)
                async_llm.connect(engine.capacity)
            await nursery.start(router.live, name=router.name)
            await nursery.start(async_llm.live, name=async_llm.name)
            try:
                yield client
            finally:
                client.close()
        for hold in holds:
            hold.close()
