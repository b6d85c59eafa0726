"""Process in which one long text is tokenized: see `apart`."""

import resource
import signal
import sys
from array import array
from functools import partial

from tokenizers import Tokenizer

from sundog.actors.front.foreign import contained
from sundog.runtime.text.apart import MOST_BYTES, MOST_CPU_S, WORD
from sundog.runtime.worker.life import bind_to


def main() -> None:
    """Read a tokenizer and a text, and write the tokens or an error."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the server, which ends this process
    bind_to(int(sys.argv[1]), signal.SIGKILL)
    resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (MOST_CPU_S, MOST_CPU_S))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    source = sys.stdin.buffer
    tokenizer_bytes, text_bytes, special = map(int, source.readline().split())
    tokenizer = Tokenizer.from_str(source.read(tokenizer_bytes).decode())
    text = source.read(text_bytes).decode()
    encode = partial(tokenizer.encode_batch_fast, [text], add_special_tokens=bool(special))
    out = sys.stdout.buffer
    try:
        (encoding,) = contained(encode)
    except Exception as error:  # noqa: BLE001  # whatever it is, the text has no tokens
        out.write(b"failed\n" + " ".join(str(error).split())[:200].encode())
    else:
        out.write(b"ok\n" + array(WORD, encoding.ids).tobytes())
    out.flush()


if __name__ == "__main__":
    main()
