"""What does not go with where the engines of `sundog serve` run, refused before anything is begun."""

from actors.config import ConfigError
from sundog.builds.torch_limits import check_threads
from sundog.options.engine import Engine
from sundog.options.placement import RAY
from sundog.options.row import rows
from sundog.options.serving import RealServing


def check_placement(serving: RealServing, engine: Engine) -> None:
    """Refuse what does not go with where engines run; raises ConfigError."""
    check_threads(serving, engine)
    if serving.on is None:
        for row in (row for row in rows(type(serving)) if row.section == RAY):
            if getattr(serving, row.name) != row.default:
                raise ConfigError(f"{row.flag} is for engines on a cluster: add --on ray, or leave it out")
    elif serving.in_process:
        raise ConfigError("--on ray and --in-process say two places: leave one out")
