"""Settings of Hypothesis for tests inside a test."""

from hypothesis import HealthCheck, Phase, Verbosity, seed, settings


def generate(examples, first_seed, *phases):
    """New examples, which are not stored, without a limit of time for each. `phases` follow the generation."""
    chosen = settings(
        max_examples=examples, deadline=None, database=None, phases=[Phase.generate, *phases], print_blob=False,
        verbosity=Verbosity.quiet, suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    return lambda test: seed(first_seed)(chosen(test))
