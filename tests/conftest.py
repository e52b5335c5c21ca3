"""What all tests share: how hard hypothesis tries, and that Ctrl-C is heard.

Tests state no `max_examples` and no deadline of their own, so that a profile can ask for more:
`make fuzz` runs the property tests with `--hypothesis-profile=fuzz`.
"""

from __future__ import annotations

import signal

from hypothesis import HealthCheck, settings

# No deadline: on a busy machine time says nothing about an example.
settings.register_profile("normal", deadline=None)
settings.register_profile("fuzz", deadline=None, max_examples=5000, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("normal")


def pytest_configure() -> None:
    # A script's shell ignores Ctrl-C for what it starts in the background, and processes inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
