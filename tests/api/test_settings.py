"""What the service is told by environment variables, each named after its field."""

from dataclasses import fields

import pytest

from meshtune.api.settings import DEFAULTS, ServiceSettings, from_environment, variable_of
from meshtune.search_spaces.checks import InvalidValue


def test_nothing_set_and_nothing_said_are_the_defaults():
    assert from_environment({}) == DEFAULTS == ServiceSettings()
    assert from_environment({variable_of(field.name): " " for field in fields(ServiceSettings)}) == DEFAULTS
    assert not DEFAULTS.metrics_open


def test_each_variable_sets_its_field():
    found = from_environment(
        {
            "MESHTUNE_METRICS_OPEN": "Yes",
            "MESHTUNE_PUBLIC_URL": "https://mesh.example",
            "MESHTUNE_REQUESTS_PER_S": "1.5",
            "MESHTUNE_POSTS_BURST": "7",
            "MESHTUNE_HOME": "/somewhere",
        }
    )
    expected = {"public_url": "https://mesh.example", "requests_per_s": 1.5, "posts_burst": 7}
    assert found == ServiceSettings(metrics_open=True, **expected)


@pytest.mark.parametrize(
    ("variable", "text", "told"),
    [
        ("MESHTUNE_METRICS_OPEN", "maybe", "MESHTUNE_METRICS_OPEN: must be 1 or 0, not 'maybe'"),
        ("MESHTUNE_POSTS_BURST", "1.5", "MESHTUNE_POSTS_BURST: must be an integer"),
        ("MESHTUNE_REQUESTS_PER_S", "fast", "MESHTUNE_REQUESTS_PER_S: must be a number"),
        ("MESHTUNE_REQUESTS_PER_S", "inf", "requests_per_s: must be positive and finite"),
        ("MESHTUNE_POSTS_BURST", "0", "posts_burst: must be at least 1"),
        ("MESHTUNE_PUBLIC_URL", "mesh.example", "public_url: is no http URL"),
    ],
)
def test_a_wrong_value_names_its_variable_and_others_are_told_with_it(variable, text, told):
    with pytest.raises(InvalidValue, match=told):
        from_environment({variable: text})
    with pytest.raises(InvalidValue) as caught:
        from_environment({"MESHTUNE_POSTS_PER_S": "x", "MESHTUNE_REQUESTS_BURST": "y"})
    assert len(caught.value.problems) == 2
