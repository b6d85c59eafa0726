"""Models of the Hugging Face hub, which `huggingface_hub` downloads into its cache.

Laws: only files that are read here are downloaded, and none that executes code when it is read. An
unsupported model is refused before its weights are downloaded. Every failure ends in one `LoadError`.

`HF_ENDPOINT`, `HF_TOKEN`, `HF_HOME` and `HF_HUB_OFFLINE` have the library's meanings.
"""

import errno
import logging
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from sundog.runtime.checkpoint.facts import LoadError, first_line, read_json, without_weights
from sundog.runtime.checkpoint.weights import INDEX

_LOG = logging.getLogger("sundog")
CONFIGS = ("config.json", "generation_config.json", "hf_quant_config.json")
TOKENIZERS = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "additional_chat_templates/*.jinja",
    "merges.txt",
    "tokenizer.model",
    "vocab.json",
    "vocab.txt",
    "tekken.json",
    "spiece.model",
)
VECTORS = ("modules.json", "sentence_bert_config.json", "*_*/config.json", "*_Dense/model.safetensors")
"""Files of embedding models in the format of Sentence Transformers."""
ADAPTERS = ("adapter_config.json",)
"""Files that mark an adapter, downloaded so that it can be refused as one."""
ADAPTER_WEIGHTS = "adapter_model.safetensors"
SMALL = (*CONFIGS, *TOKENIZERS, *VECTORS, *ADAPTERS, INDEX)
FILES = (".json", ".gguf", ".toml", ".safetensors")
"""Endings of names that are files: if one is missing, it is not a model on the hub."""
NO_ROOM = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)
_NAME = re.compile(r"([\w-][\w.-]*/[\w-][\w.-]*)(?:@([\w.-][\w./-]*))?", re.ASCII)


class NotFound(LoadError):
    """Raised for a model that is neither in the cache nor on the hub."""


class HubModel(NamedTuple):
    """Model of the hub: `id` is OWNER/NAME, `revision` a branch, tag or commit; None is the main branch."""

    id: str
    revision: str | None = None


def hub_model(text: str, revision: str | None = None) -> HubModel | None:
    """Return the model that OWNER/NAME or OWNER/NAME@REVISION names; None for a local path."""
    found = _NAME.fullmatch(text)
    if found is None or Path(text).exists() or text.endswith(FILES):
        return None
    if revision is not None and found[2] is not None:
        raise LoadError(f"{text} names a revision, and --revision is {revision}: leave one of them out")
    return HubModel(found[1], found[2] or revision)


def name_of(folder: Path) -> str:
    """Return the name of a folder for the log: OWNER/NAME for one in the cache, whose folders have names of
    commits.
    """
    if folder.parent.name == "snapshots":
        return folder.parent.parent.name.removeprefix("models--").replace("--", "/")
    return folder.name


def fetch_model(asked: HubModel, check: Callable[[Path], None], *, shows_bars: bool = True) -> Path:
    """Fetch a model to serve, and return its folder in the library's cache.

    Args:
        asked: The model.
        check: Raises LoadError for a folder of configuration and tokenizer whose model is not served.
        shows_bars: Whether a terminal shows how far a download is.

    Raises:
        LoadError: The model cannot be fetched, or has no weights that are read here.
    """
    with _in_one_line(asked), _bars(shows_bars):
        sizes = _listing(asked)
        if sizes is not None and not any(name.endswith(".safetensors") for name in sizes):
            raise _without_weights(asked, list(sizes))
        folder = _snapshot(asked, SMALL)
        check(folder)
        weights = _weight_files(folder)
        # By its commit: both calls fetch the same one, even if the branch has moved in between.
        here = HubModel(asked.id, folder.name)
        if sizes is not None:
            _announce(asked, {name: sizes[name] for name in weights if name in sizes}, folder)
        return _snapshot(here, (*SMALL, *weights))


def fetch_adapter(asked: HubModel, check: Callable[[Path], None], *, shows_bars: bool = True) -> Path:
    """Fetch a LoRA adapter, and return its folder in the library's cache; as `fetch_model` does."""
    with _in_one_line(asked), _bars(shows_bars):
        sizes = _listing(asked)
        if sizes is not None and ADAPTER_WEIGHTS not in sizes:
            raise LoadError(f"{asked.id} has no {ADAPTER_WEIGHTS}: it is no LoRA adapter in peft's format")
        folder = _snapshot(asked, ADAPTERS)
        check(folder)
        here = HubModel(asked.id, folder.name)
        if sizes is not None:
            _announce(asked, {ADAPTER_WEIGHTS: sizes[ADAPTER_WEIGHTS]}, folder)
        return _snapshot(here, (*ADAPTERS, ADAPTER_WEIGHTS))


def _without_weights(asked: HubModel, files: list[str]) -> LoadError:
    if found := sorted(name for name in files if name.endswith(".gguf") and "/" not in name):
        get = f"hf download {asked.id} {found[0]} --local-dir ."
        return LoadError(f"{asked.id}has only GGUF files: download one, as by `{get}`, and serve the file")
    return without_weights(asked.id, files)


def fetch_config(asked: HubModel, *, tokenizer: bool = False) -> Path:
    """Download the files for simulating a model, its configuration or its tokenizer, without weights.

    Files in the cache are used without a request, so that a sweep asks the hub once.
    """
    from huggingface_hub.errors import LocalEntryNotFoundError

    files = (*CONFIGS, *TOKENIZERS) if tokenizer else CONFIGS
    needed = () if tokenizer else ("config.json",)
    with _in_one_line(asked), _bars(False):
        try:
            folder = _snapshot(asked, files, only_here=True)
            if all((folder / name).is_file() for name in needed):
                return folder
        except LocalEntryNotFoundError:
            pass
        folder = _snapshot(asked, files)
    if missing := [name for name in needed if not (folder / name).is_file()]:
        raise LoadError(f"{asked.id} on the hub has no {missing[0]}: it is not in Hugging Face's format")
    return folder


def _snapshot(asked: HubModel, files: Sequence[str], *, only_here: bool = False) -> Path:
    from huggingface_hub import snapshot_download

    return Path(
        snapshot_download(
            asked.id, revision=asked.revision, allow_patterns=list(files), local_files_only=only_here
        )
    )


def _listing(asked: HubModel) -> dict[str, int] | None:
    """Return the repository's files with their sizes in bytes; None if the hub cannot be reached."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

    try:
        info = HfApi().model_info(asked.id, revision=asked.revision, files_metadata=True)
    except HfHubHTTPError as error:
        if error.response.status_code < 500:
            raise
        return None
    except Exception as error:
        if _is_unreachable(error):
            return None
        raise
    return {file.rfilename: file.size or 0 for file in info.siblings or ()}


def _is_unreachable(error: Exception) -> bool:
    """Return whether the error means that the network is unreachable or disabled."""
    from huggingface_hub.errors import OfflineModeIsEnabled

    # The library's HTTP client has changed its name before: its errors are known by theirs.
    kinds = {kind.__name__ for kind in type(error).__mro__}
    return isinstance(error, OfflineModeIsEnabled) or bool(kinds & {"ConnectError", "TimeoutException"})


def _weight_files(folder: Path) -> list[str]:
    """Return the names of the weights' files; LoadError if the index names a file outside the folder."""
    names = read_json(folder / INDEX).get("weight_map")
    if not isinstance(names, dict):
        return ["model.safetensors"]
    found = {str(name) for name in names.values()}
    for name in found:
        # The names are patterns, too: `*` would fetch everything.
        if not re.fullmatch(r"[\w.-]+\.safetensors", name, re.ASCII):
            raise LoadError(f"cannot read {folder / INDEX}: it names {name!r}, no safetensors file beside it")
    return sorted(found)


def _announce(asked: HubModel, sizes: dict[str, int], folder: Path) -> None:
    """Log the size of the download; LoadError if the disk lacks space."""
    left = {name: size for name, size in sizes.items() if not (folder / name).is_file()}
    if not left:
        return
    wanted, free = sum(left.values()), shutil.disk_usage(folder).free
    if wanted > free:
        raise LoadError(
            f"the weights of {asked.id} take {_size(wanted)}, and the disk of {_cache()} has {_size(free)}"
            " left: free some, or set HF_HOME to a folder on another disk"
        )
    what = "1 file" if len(left) == 1 else f"{len(left)} files"
    _LOG.info("fetching the weights of %s, %s of %s, into %s", asked.id, what, _size(wanted), _cache())


def _size(count: int) -> str:
    return f"{count / 1e9:.2f} GB" if count >= 1e7 else f"{count / 1e6:.2f} MB"


def _cache() -> str:
    from huggingface_hub import constants

    return str(constants.HF_HUB_CACHE)


@contextmanager
def _bars(shown: bool) -> Iterator[None]:
    """Show the library's progress bars on a terminal, and log its warnings as this program's."""
    from huggingface_hub.utils.logging import set_verbosity_error
    from huggingface_hub.utils.tqdm import (
        are_progress_bars_disabled,
        disable_progress_bars,
        enable_progress_bars,
    )

    set_verbosity_error()  # type: ignore[no-untyped-call]  # the library's own gap
    was_off = are_progress_bars_disabled()
    if not (shown and sys.stderr.isatty()):
        disable_progress_bars()
    try:
        yield
    finally:
        if not was_off:
            enable_progress_bars()


@contextmanager
def _in_one_line(asked: HubModel) -> Iterator[None]:
    try:
        yield
    except LoadError:
        raise
    except ModuleNotFoundError:
        raise
    except Exception as error:  # of the library, of its HTTP client, of the disk
        raise _refusal(asked, error) from error


def _refusal(asked: HubModel, error: Exception) -> LoadError:
    from huggingface_hub import errors

    gone = errors.RepositoryNotFoundError | errors.LocalEntryNotFoundError | errors.OfflineModeIsEnabled
    is_unknown = isinstance(error, gone) and not isinstance(error, errors.GatedRepoError)
    return (NotFound if is_unknown or _is_unreachable(error) else LoadError)(_why(asked, error))


def _why(asked: HubModel, error: Exception) -> str:
    from huggingface_hub import constants, errors, get_token

    name, hub = asked.id, str(constants.ENDPOINT)
    if not hub.startswith(("http://", "https://")):
        return f"HF_ENDPOINT is {hub}: give an address that begins with http:// or https://"
    match error:
        case OSError(errno=number) if number in NO_ROOM:
            return (
                f"the disk of {_cache()} is full: free some, or set HF_HOME to a folder on another disk; the"
                " same command goes on where this one stopped"
            )
        case PermissionError():
            return (
                f"cannot write {error.filename or _cache()}: {error.strerror}; HF_HOME chooses another folder"
            )
        case errors.GatedRepoError():
            return (
                f"{name} is gated: accept its terms at {hub}/{name}, and set HF_TOKEN to a token of that"
                " account"
            )
        case errors.RepositoryNotFoundError():
            private = (
                "a private one needs a token of its owner in HF_TOKEN"
                if get_token() is None
                else "or the token has no access to it"
            )
            return f"there is no folder {name}, and no such model at {hub}; {private}"
        case errors.RevisionNotFoundError():
            return f"{name} has no revision {asked.revision} at {hub}: give a branch, a tag or a commit"
        case errors.OfflineModeIsEnabled() | errors.LocalEntryNotFoundError():
            return _not_here(name, hub, error)
        case errors.HfHubHTTPError():
            return _answered(name, hub, error.response.status_code)
    if _is_unreachable(error):
        return _not_here(name, hub, error)
    return (
        f"fetching {name} from {hub} broke off: {first_line(error)}; the same command goes on where this one"
        " stopped"
    )


def _not_here(name: str, hub: str, error: BaseException) -> str:
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return f"there is no folder {name}, it is not in {_cache()}, and HF_HUB_OFFLINE forbids fetching it"
    cause = error.__cause__ or error
    status = getattr(getattr(cause, "response", None), "status_code", None)
    if status is not None:
        return _answered(name, hub, status)
    why = first_line(cause) if isinstance(cause, Exception) else str(cause)
    return f"there is no folder {name}, it is not in {_cache()}, and {hub} cannot be reached: {why}"


def _answered(name: str, hub: str, status: int) -> str:
    if status == 401:
        return f"{hub} refuses the token in HF_TOKEN (HTTP 401): set another, or none for a public model"
    if status == 403:
        return f"{hub} refuses {name} to you (HTTP 403): set HF_TOKEN to a token that may read it"
    return f"{hub} answers HTTP {status} when asked for {name}: try again later"
