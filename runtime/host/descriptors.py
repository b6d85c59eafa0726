"""Limit on file descriptors of this process and its children."""

import resource

ENOUGH = 65_536


def raise_descriptor_limit() -> None:
    """Raise the limit as far as the system allows, up to ENOUGH."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = ENOUGH if hard == resource.RLIM_INFINITY else min(hard, ENOUGH)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
