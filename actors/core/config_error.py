"""The error of a setting that cannot work.

This module is never compiled: mypyc would take the plain classes derived from a compiled one for others.
"""


class ConfigError(ValueError):
    """A setting that cannot work. The message names the field and the remedy.

    Example:
        >>> import sundog
        >>> sundog.replay("trace.jsonl", max_num_seq=8)
        Traceback (most recent call last):
        sundog.ConfigError: there is no option max_num_seq. Do you mean max_num_seqs?
    """
