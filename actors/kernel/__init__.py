"""The actor kernel: actors, mailboxes, replies, streams, the clock and the tap (docs/kernel.md).

An actor owns its state; only messages to its `Ref` change it. It ends when all its callers have hung up.

Example:
    >>> import trio
    >>> from sundog.actors.kernel.actor import Actor
    >>> class Counter(Actor[int]):
    ...     total = 0
    ...     def handle(self, message):
    ...         self.total += message
    >>> async def main():
    ...     counter = Counter("counter")
    ...     ref = counter.ref("main")
    ...     async with trio.open_nursery() as nursery:
    ...         await nursery.start(counter.live)
    ...         ref.tell(2)
    ...         ref.tell(3)
    ...         ref.close()
    ...     return counter.total
    >>> trio.run(main)
    5
"""
