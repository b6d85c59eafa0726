"""Mirror of the Hugging Face hub on this machine: its routes for models, over folders.

The routes and headers are those that the hub's own client relies on: a model's commit and files, its tree,
and files by HEAD, GET and Range, with ETag and X-Repo-Commit. Refusals name their reason in X-Error-Code.
"""

import asyncio
import hashlib
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from hypercorn.asyncio import serve
from hypercorn.config import Config
from quart import Quart, Response, jsonify, request

MAIN = "main"


@dataclass
class Mirror:
    """Models by name, each a folder by revision; what was asked for is kept in `asked`."""

    models: dict[str, dict[str, Path]]
    url: str = ""
    token: str | None = None
    """The token that every request must bear."""
    gated: bool = False
    status: int | None = None
    """The status of every answer, if the mirror is out of order."""
    cuts: int = 0
    """How many of the next answers with a file's bytes break off in the middle."""
    asked: list[tuple[str, str]] = field(default_factory=list)

    def commit(self, name: str, revision: str) -> str | None:
        """The commit of a branch or tag, or the commit itself."""
        commits = {of: hashlib.sha1(f"{name} {of}".encode()).hexdigest() for of in self.models.get(name, ())}
        return commits.get(revision) or (revision if revision in commits.values() else None)

    def found(self, name: str, revision: str) -> tuple[str, Path]:
        """The commit and the folder of a revision that is there."""
        commit = self.commit(name, revision)
        assert commit is not None
        return commit, next(
            folder for of, folder in self.models[name].items() if self.commit(name, of) == commit
        )

    def sent(self, file: Path, commit: str) -> Response:
        """The answer with a file's bytes, or without them to HEAD; from where a Range says."""
        whole = file.read_bytes()
        first = int(request.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")[0])
        body = whole[first:]
        cut = bool(self.cuts) and request.method == "GET" and len(body) > 1
        self.cuts -= cut
        answer = Response(_cut(body) if cut else body, status=206 if "Range" in request.headers else 200)
        answer.headers["ETag"] = f'"{_oid(file)}"'
        answer.headers["X-Repo-Commit"] = commit
        answer.headers["Accept-Ranges"] = "bytes"
        answer.headers["Content-Length"] = str(len(body))
        if answer.status_code == 206:
            answer.headers["Content-Range"] = f"bytes {first}-{len(whole) - 1}/{len(whole)}"
        return answer

    def fetched(self) -> set[str]:
        """The files whose bytes were sent."""
        return {
            path.rpartition("/")[2] for method, path in self.asked if method == "GET" and "/resolve/" in path
        }

    def refusal(self, name: str, revision: str) -> tuple[int, str, str] | None:
        """The status, code and message for what is not to be had."""
        given = request.headers.get("Authorization")
        if self.status is not None:
            return self.status, "", "out of order"
        if given is not None and self.token is not None and given != f"Bearer {self.token}":
            return 401, "", "Invalid credentials in Authorization header"
        if name not in self.models or (self.token is not None and given is None and not self.gated):
            return 401, "RepoNotFound", "Repository not found"
        if self.gated and given is None:
            return 401, "GatedRepo", "Access to this model is restricted"
        if self.commit(name, revision) is None:
            return 404, "RevisionNotFound", f"Invalid rev id: {revision}"
        return None


def _rows(folder: Path) -> list[tuple[str, int, str]]:
    """The files below a folder, with their sizes in bytes and hashes."""
    files = [file for file in sorted(folder.rglob("*")) if file.is_file()]
    return [(str(file.relative_to(folder)), file.stat().st_size, _oid(file)) for file in files]


def _oid(file: Path) -> str:
    return hashlib.sha1(file.read_bytes()).hexdigest()


def _refused(why: tuple[int, str, str]) -> Response:
    status, code, message = why
    headers = {"X-Error-Message": message} | ({"X-Error-Code": code} if code else {})
    return Response(message, status=status, headers=headers)


def app_of(mirror: Mirror) -> Quart:
    """The mirror as an app."""
    app = Quart(__name__)

    @app.before_request
    async def note() -> None:
        mirror.asked.append((request.method, request.path))

    @app.get("/api/models/<owner>/<model>")
    @app.get("/api/models/<owner>/<model>/revision/<path:revision>")
    async def info(owner: str, model: str, revision: str = MAIN) -> Response:
        name = f"{owner}/{model}"
        if (why := mirror.refusal(name, revision)) is not None:
            return _refused(why)
        commit, folder = mirror.found(name, revision)
        rows = [{"rfilename": path, "size": size, "blobId": oid} for path, size, oid in _rows(folder)]
        known = {"_id": "1", "id": name, "modelId": name, "sha": commit, "private": False}
        return jsonify({**known, "siblings": rows})

    @app.get("/api/models/<owner>/<model>/tree/<path:revision>")
    async def tree(owner: str, model: str, revision: str) -> Response:
        name = f"{owner}/{model}"
        if (why := mirror.refusal(name, revision)) is not None:
            return _refused(why)
        _commit, folder = mirror.found(name, revision)
        kinds = {"type": "file"}
        return jsonify(
            [{**kinds, "path": path, "size": size, "oid": oid} for path, size, oid in _rows(folder)]
        )

    @app.route("/<owner>/<model>/resolve/<revision>/<path:file>", methods=["GET", "HEAD"])
    async def resolve(owner: str, model: str, revision: str, file: str) -> Response:
        name = f"{owner}/{model}"
        if (why := mirror.refusal(name, revision)) is not None:
            return _refused(why)
        commit, folder = mirror.found(name, revision)
        if not (folder / file).is_file():
            return _refused((404, "EntryNotFound", f"no {file}"))
        return mirror.sent(folder / file, commit)

    return app


async def _cut(body: bytes) -> AsyncIterator[bytes]:
    yield body[: len(body) // 2]
    raise ConnectionResetError("the mirror breaks off")


@contextmanager
def mirror_of(models: dict[str, dict[str, Path]]) -> Iterator[Mirror]:
    """A mirror of these folders, which serves until the block ends."""
    mirror, listening = Mirror(models), socket.create_server(("127.0.0.1", 0))
    mirror.url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    config = Config()
    config.bind, config.errorlog = [f"fd://{listening.detach()}"], None
    over, ready = threading.Event(), threading.Event()
    app = app_of(mirror)

    @app.before_serving
    async def is_up() -> None:
        ready.set()

    async def until_over() -> None:
        await asyncio.to_thread(over.wait)

    thread = threading.Thread(target=lambda: asyncio.run(serve(app, config, shutdown_trigger=until_over)))
    thread.start()
    try:
        assert ready.wait(30)
        yield mirror
    finally:
        over.set()
        thread.join()
