"""Error of a setting that cannot work.

Never compiled: mypyc would treat plain subclasses of a compiled class as unrelated.
"""


class ConfigError(ValueError):
    """A setting that cannot work. The message names the field and the remedy.

    Example:
        >>> import sundog
        >>> sundog.replay("trace.jsonl", max_num_seq=8)
        Traceback (most recent call last):
        sundog.ConfigError: there is no option max_num_seq. Do you mean max_num_seqs?
    """
