"""First weights: what the models of a run begin with, where that is not what the script makes (`--init-from`).

It is found once, here, so that every worker reads the same, also where the run that it is from goes on. A run that is
resumed has its weights from its checkpoint; its script begins once more with what it began with then, if that is there.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import msgspec

from holdfast.checkpoint.forms.weights import locate_weights, open_weights
from holdfast.cli.launch.resumption import Resumption
from holdfast.config.run_config import RunConfig
from holdfast.errors import CheckpointError, brief

__all__ = ["with_first_weights"]


def with_first_weights(config: RunConfig, resumption: Resumption | None, say: Callable[[str], None]) -> RunConfig:
    """The configuration, with the file or checkpoint that is meant in the place of what was said.

    Raises CheckpointError where a run is to begin with what cannot be used.
    """
    if resumption is not None:
        before = str(resumption.checkpoint.manifest.config.get("init_from", ""))
        try:
            return _found(config, before, say) if before else config
        except CheckpointError as error:
            say(
                f"warning: the run began with the weights of {before}, which cannot be used any more: {brief(error)}. "
                "It goes on with those of its checkpoint"
            )
            return config
    return _found(config, config.init_from, say) if config.init_from else config


def _found(config: RunConfig, path: str, say: Callable[[str], None]) -> RunConfig:
    found, passed_over = locate_weights(Path(path))
    open_weights(found)
    for sentence in passed_over:
        say(f"warning: {sentence}")
    return msgspec.structs.replace(config, init_from=os.path.abspath(found))
