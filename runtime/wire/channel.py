"""The two ends of a channel: an Outlet stands for an actor elsewhere, an Inlet for a sender elsewhere."""

from collections import deque
from typing import Any, Protocol

from actors.kernel.actor import Actor, ActorDied, Reply
from actors.kernel.mailbox import Mailbox
from actors.kernel.owner import Owner, Watcher
from runtime.wire.frames import Kind


class Carrier(Protocol):
    """The calls of a channel to its link."""

    def send(self, kind: Kind, channel: int, message: object, reply: Reply[Any] | None = None) -> None: ...

    def answer(self, number: int, value: object, error: BaseException | None) -> None: ...

    def signal(self, kind: Kind, channel: int) -> None: ...


class Outlet(Owner[Any]):
    """Owns a mailbox whose messages go to the other end at once; what is not taken there waits."""

    def __init__(self, link: Carrier, channel: int, name: str) -> None:
        self._link = link
        self._channel = channel
        self.mailbox: Mailbox[Any] = Mailbox(name, self)

    def opened(self, capacity: int) -> None:
        """The actor there is found, and has a mailbox of this capacity; 0: of any."""
        self.mailbox.capacity = capacity or None
        self.mailbox.is_free = True

    def receive(self, message: object, reply: Reply[object] | None) -> None:
        mailbox = self.mailbox
        mailbox.num_handled += 1
        mailbox.last_s = self.clock.now_s()
        self._link.send(Kind.TELL if reply is None else Kind.ASK, self._channel, message, reply)
        if mailbox.capacity is not None:
            mailbox.num_away += 1
            mailbox.most_waiting = max(mailbox.most_waiting, mailbox.num_away)
            mailbox.is_free = not (mailbox.is_full or mailbox.is_closed)

    def taken(self) -> None:
        """The oldest message has left the mailbox there: there is room for one more."""
        mailbox = self.mailbox
        mailbox.num_away -= 1
        mailbox.is_free = not mailbox.is_closed
        mailbox.offer_room()

    def ended(self) -> None:
        """The actor there takes no message any more; questions are answered, or not, by themselves."""
        if not self.mailbox.is_closed:
            self.mailbox.close()

    def wake(self) -> None:
        if not self.mailbox.is_closed:
            self._link.signal(Kind.HANG_UP, self._channel)
            self.mailbox.close()


class Inlet(Watcher):
    """Holds a Ref for a sender at the other end, and reports what becomes of its messages."""

    def __init__(self, link: Carrier, channel: int, actor: Actor[Any], sender: str, counted: bool) -> None:
        self._link = link
        self._channel = channel
        self._mailbox = actor.mailbox
        self._ref = actor.ref(sender, counted=counted)
        self._due: deque[int] = deque()
        """How many messages its actor will have begun when those are begun that wait there."""
        self._mailbox.watchers.append(self)

    def deliver(self, message: Any, number: int | None) -> None:
        """Give the actor a message, to be answered under this number; MailboxFull if it is one too many."""
        mailbox = self._mailbox
        is_bounded = mailbox.capacity is not None
        if is_bounded and not mailbox.is_free:
            self._due.append(mailbox.num_handled + len(mailbox.queue) + 1)
        elif is_bounded:
            self._link.signal(Kind.TAKEN, self._channel)
        try:
            if number is None:
                return self._ref.tell(message)
            reply: Reply[Any] = self._ref.request(message)
        except ActorDied as error:
            if number is not None:
                self._link.answer(number, None, error)
            return
        reply.then(lambda value, error: self._link.answer(number, value, error))

    def taken(self) -> None:
        if self._due and self._due[0] <= self._mailbox.num_handled + 1:
            self._due.popleft()
            self._link.signal(Kind.TAKEN, self._channel)

    def closed(self) -> None:
        self._link.signal(Kind.ENDED, self._channel)

    def hang_up(self) -> None:
        """Note that the sender has gone."""
        self._mailbox.watchers.remove(self)
        self._ref.close()
