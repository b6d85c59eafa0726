"""The error of a setting that cannot work.

This module is never compiled: mypyc would take the plain classes derived from a compiled one for others.
"""


class ConfigError(ValueError):
    """A setting that cannot work; the message names the field and the way out."""
