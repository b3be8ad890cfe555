"""Hypothesis profiles: `HYPOTHESIS_PROFILE=long pytest tests/property` searches for minutes instead of seconds."""

import os

from hypothesis import HealthCheck, settings

_SLOW_ON_PURPOSE = [HealthCheck.too_slow, HealthCheck.data_too_large]

settings.register_profile("normal", max_examples=100, deadline=None, suppress_health_check=_SLOW_ON_PURPOSE)
settings.register_profile(
    "long",
    max_examples=3000,
    stateful_step_count=120,
    deadline=None,
    suppress_health_check=_SLOW_ON_PURPOSE,
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "normal"))
