"""The fixture `choreography` of the pytest plugin."""

from saga.choreography.check.accepted import CheckResult


def test_the_example_is_proved(choreography: CheckResult) -> None:
    assert choreography.is_proved, choreography.report
    (verdict,) = choreography.verdicts
    assert list(verdict.choreography.services) == ["inventory", "order", "payment", "shipping"]
    assert choreography.report.startswith("sagas by order_id: 4 services, 15 events: proved\n")
