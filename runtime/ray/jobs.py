"""Processes of a cluster that run jobs one after another, like `sundog/sweeps/workers.py` on one machine."""

import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Generic, TypeVar

import ray

from sundog.runtime.ray.promises import why

J = TypeVar("J")
R = TypeVar("R")
D = TypeVar("D")


class JobActor(Generic[J, R]):
    """Ray actor that calls `run` with jobs, in the command's folder if the node has that folder."""

    def __init__(self, run: Callable[[J], R], folder: str) -> None:
        with suppress(OSError):
            os.chdir(folder)
        self._run = run

    def run(self, job: J) -> R:
        return self._run(job)


class RayWorker(Generic[J, R, D]):
    """Worker process on a node's free CPU; its results are small enough for Ray.

    The result of a job whose process dies is `died(how)`.
    """

    def __init__(self, run: Callable[[J], R], died: Callable[[str], D]) -> None:
        self._died = died
        self._actor = ray.remote(JobActor).options(num_cpus=1, max_restarts=0).remote(run, os.getcwd())
        self.promise: Any = None

    def begin(self, job: J) -> None:
        self.promise = self._actor.run.remote(job)

    def result(self) -> R | D:
        try:
            result: R = ray.get(self.promise)
            return result
        except ray.exceptions.RayError as error:
            return self._died(f"its process ended: {why(error)}")

    def end(self) -> None:
        with suppress(ray.exceptions.RayError):
            ray.kill(self._actor)


def wait(promises: list[Any]) -> list[Any]:
    """Wait until some promises are fulfilled or broken, and return those."""
    done, _ = ray.wait(promises, num_returns=1)
    return list(done)
