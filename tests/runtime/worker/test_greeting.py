"""Engine processes with a late handshake, as on a busy machine, on the virtual clock."""

import logging
import re

import pytest
import trio

from sundog.actors.config import ConfigError
from sundog.runtime.wire.frames import WireError
from sundog.runtime.worker.engine_process import EngineProcess
from sundog.runtime.worker.supervision import RunningProcess


class Begun(Exception):
    """A process greets: the end of these tests."""


class Mute:
    """A launcher whose first processes do not greet; each takes the time of the handshake."""

    def __init__(self, num_mute: int, wait_s: float = 10.0) -> None:
        self.num_mute, self.wait_s, self.num_begun = num_mute, wait_s, 0

    async def begin(self, replica: int) -> RunningProcess:
        self.num_begun += 1
        if self.num_begun > self.num_mute:
            raise Begun
        await trio.sleep(self.wait_s)
        raise WireError("no greeting within 10 s")

    def tend(self) -> None:
        pass


async def test_a_process_that_does_not_greet_is_begun_again(caplog: pytest.LogCaptureFixture) -> None:
    """With a line of the log for each, until one does."""
    launcher = Mute(num_mute=3)
    with caplog.at_level(logging.WARNING), pytest.raises(Begun):
        await EngineProcess(0, launcher, stall_s=10.0).run_core([], lambda engine: None)
    assert [record.getMessage() for record in caplog.records] == [
        "an engine process could not be reached (no greeting within 10 s): another begins"
    ] * 3


async def test_processes_that_never_greet_end_the_start_under_load_timeout() -> None:
    """With one line that names the option: 10 s and a pause of 1 s each, until 60 s are over."""
    launcher = Mute(num_mute=1_000)
    words = "no engine process could be reached within 60 s: give it longer by --load-timeout (no greeting"
    with pytest.raises(ConfigError, match=re.escape(words)):
        await EngineProcess(0, launcher, stall_s=10.0, load_s=60.0).run_core([], lambda engine: None)
    assert launcher.num_begun == 6
