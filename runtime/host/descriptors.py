"""How many file descriptors this process, and those that it begins, may have."""

import resource

ENOUGH = 65_536


def raise_descriptor_limit() -> None:
    """Allow as many as the system lets, up to ENOUGH."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = ENOUGH if hard == resource.RLIM_INFINITY else min(hard, ENOUGH)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
