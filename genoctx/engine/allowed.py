"""Which homes can go together, beside a GPU and where ranks share the weights. No torch: plans ask, too."""

from __future__ import annotations

from collections.abc import Mapping

from genoctx.errors import ConfigError


def refuse_homes(wanted: Mapping[str, str], *, gpu: bool, ranks: int = 1) -> None:
    """ConfigError for homes (category -> ``device``, ``host``, ``file``) that the engine cannot keep.

    ``ranks``: processes that share the weights.
    """
    away = {name for name, kind in wanted.items() if kind != "device"}
    if gpu:
        for name in sorted(away & {"latents", "d_latents"}):
            raise ConfigError(
                f"homes.{name} cannot leave the GPU: attention gathers from all of them",
                f"set homes.{name} = 'device'; carries, ids, parameters and moments can leave",
            )
        if "parameters" in away and "moments" not in away:
            raise ConfigError(
                "homes.parameters cannot leave the GPU without homes.moments: the step is taken where masters are",
                "set both to 'host' or 'file', or homes.moments alone, or both to 'device'",
            )
    if ranks > 1 and "parameters" in away:
        raise ConfigError(
            "homes.parameters cannot leave the device where ranks share the parameters",
            "set homes.parameters = 'device'; homes.moments can leave, and more ranks make the parts smaller",
        )


def are_allowed(wanted: Mapping[str, str], *, gpu: bool, ranks: int = 1) -> bool:
    """Whether :func:`refuse_homes` lets them pass."""
    try:
        refuse_homes(wanted, gpu=gpu, ranks=ranks)
    except ConfigError:
        return False
    return True
