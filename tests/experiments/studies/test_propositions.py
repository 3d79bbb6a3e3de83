"""Orders of figures with intervals, by hand."""

import pytest

from experiments.studies.measure import LEFT_OUT
from experiments.studies.propositions import MIX, NESTED, Row, ordered, propositions


@pytest.mark.parametrize(
    ("figures", "answer"),
    [
        ([(1, 0.3), (2, 0.4), (3, 0.4)], "holds"),
        ([(1, 0.3), (1.4, 0.4), (3, 0.4)], "open"),  # 0.4 apart, the intervals together 0.5
        ([(1, 0.3), (2, 0.4), (1.4, 0.4)], "fails"),
        ([(1, 0), (1, 0)], "open"),
    ],
)
def test_order_of_intervals(figures: list[tuple[float, float]], answer: str) -> None:
    assert ordered(figures) == answer


def row(**figures: float) -> Row:
    """Every figure with an interval of 0.1 to each side."""
    result: Row = {}
    for name, value in figures.items():
        which, moment = name.split("__")
        which = {"common": "common", "out": f"common{LEFT_OUT}", "all": "all"}[which]
        key = f"{which}: {moment}"
        result |= {key: value, f"{key}_low": value - 0.1, f"{key}_high": value + 0.1, f"{which}: share": 0.5}
    return result


def test_propositions_at_a_point() -> None:
    names = (*NESTED, MIX)
    bias = dict(zip(names, (4.0, 3.0, 2.0, 1.0, 3.5), strict=True))
    over_all = dict(zip(names, (4.0, 3.0, 3.5, 5.0, 3.9), strict=True))
    variance = dict(zip(names, (5.0, 4.9, 5.0, 5.1, 5.0), strict=True))
    by_arm = {
        name: row(
            common__bias2=bias[name],
            out__bias2=2 * bias[name],
            all__bias2=over_all[name],
            common__variance=variance[name],
            out__variance=-bias[name],
        )
        for name in names
    }
    assert propositions(by_arm) == {
        "bias falls": "holds",
        "bias falls, own step out": "holds",
        "bias falls, all steps": "fails",
        "variance rises": "open",
        "variance rises, own step out": "holds",
        "mix between, bias": "holds",
        "mix between, variance, own step out": "holds",
    }
    del by_arm["level 1"]
    assert propositions(by_arm)["bias falls"] == "-"
    assert propositions(by_arm)["mix between, bias"] == "holds"
    by_arm[MIX]["common: share"] = 0.0
    assert propositions(by_arm)["mix between, bias"] == "-"
