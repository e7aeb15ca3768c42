"""AReaL's training configuration, as far as an evaluation reads it."""

from __future__ import annotations

from pytest_areal_eval.config.load import load_config
from pytest_areal_eval.config.schema import Config, Origin

__all__ = ["Config", "Origin", "load_config"]
