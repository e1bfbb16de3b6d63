"""What ``table.optimizer`` promises: options that count, refusals that help, peers' numbers."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pserver.errors import ConfigError
from pserver.table.optimizer import RULES, Choice, Number, make_optimizer
from tests.reference import DEFAULTS, Rule


def run(text: str, grads: list[list[float]], w0: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """Return weights and state of one row after some gradients."""
    dim = len(grads[0])
    rule = make_optimizer(text, dim=dim)
    row = np.full(dim + rule.state_dim, rule.first_state, np.float32)
    row[:dim] = w0
    for grad in grads:
        rule.kernel(
            row,
            row.size,
            dim,
            np.zeros(1, np.int64),
            np.array(grad, np.float32),
            rule.options,
            rule.kernel_table,
        )
    return row[:dim], row[dim:]


def with_options(name: str, options: dict[str, float | str]) -> str:
    return f"{name}:" + ",".join(f"{option}={value}" for option, value in options.items())


def test_every_rule_says_what_it_is_when_listed() -> None:
    """Formula, state, source and a default within range stand with every rule."""
    for name, rule in RULES.items():
        assert rule.formula, name
        assert rule.state, name
        assert rule.source, name
        for option, kind in rule.options.items():
            assert kind.read(str(kind.default), where=option) == kind.default


def test_the_defaults_are_those_of_the_reference_when_nothing_is_given() -> None:
    """No default and no option changes unseen, and a rule's text spells all of them out."""
    for name in RULES:
        full = make_optimizer(name, dim=4).text

        assert full == with_options(name, DEFAULTS[name])
        assert make_optimizer(full, dim=4).text == full
    assert set(RULES) == set(DEFAULTS)


OPTIONS = [(name, option) for name, rule in RULES.items() for option in rule.options]
STARTS: dict[tuple[str, str], list[dict[str, float | str]]] = {
    ("adagrad", "initial"): [
        {"state": state, "accumulate": accumulate, "initial": 1.0}
        for state, accumulate in product(("element", "row"), ("before", "after"))
    ],
    ("adagrad", "eps"): [{"state": "element"}, {"state": "row"}],
    ("adagrad", "lr"): [
        {"state": state, "accumulate": accumulate, "initial": 1.0}
        for state, accumulate in product(("element", "row"), ("before", "after"))
    ],
    ("adagrad", "accumulate"): [{"initial": 1.0}],
}
"""What else is set when an option is changed, where the defaults alone would not do."""


@pytest.mark.parametrize(("name", "option"), OPTIONS)
def test_the_result_changes_when_an_option_changes(name: str, option: str) -> None:
    """No option of any rule is taken and dropped: each one moves the weights elsewhere."""
    kind = RULES[name].options[option]
    grads = [[0.3, -0.2, 0.1], [0.1, 0.4, -0.2], [-0.1, 0.2, 0.3]]
    for start in STARTS.get((name, option), [{}]):
        values = {**DEFAULTS[name], **start}
        before, _ = run(with_options(name, values), grads)
        others: list[float | str] = (
            [word for word in kind.words if word != values[option]]
            if isinstance(kind, Choice)
            else [float(values[option]) * 0.5 + 0.01]
        )
        for other in others:
            after, _ = run(with_options(name, {**values, option: other}), grads)
            assert not np.allclose(before, after, rtol=1e-4, atol=0), (start, other)


@pytest.mark.parametrize("dim", [1, 4, 16])
def test_the_state_is_as_stated_when_a_rule_is_bound(dim: int) -> None:
    """The floats of state a row and their first value are those of the reference."""
    for text in (
        "sgd",
        "adagrad:initial=0.5",
        "adagrad:state=row,initial=0.5",
        "adagrad:accumulate=after,initial=3",
        "adagrad:accumulate=after,initial=3,state=row",
        "adam",
    ):
        rule, expected = make_optimizer(text, dim=dim), Rule(text, dim)

        assert rule.state_dim == expected.state_dim, text
        assert rule.first_state == expected.first_state, text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("adagard", r"x: unknown rule 'adagard'; did you mean 'adagrad'\? Valid: adagrad, adam"),
        ("sgd:momentum=0.9", r"x: sgd has no option 'momentum' in 'sgd:momentum=0.9'; valid: lr"),
        ("adam:beta_1=0.9", r"x: adam has no option 'beta_1' .*did you mean 'beta1'\?"),
        ("sgd:lr=-1", r"x: sgd:lr must be a number in \[0, 1e\+06\], got '-1'"),
        ("sgd:lr=fast", r"x: sgd:lr must be a number in \[0, 1e\+06\], got 'fast'"),
        ("sgd:lr=nan", r"got 'nan'"),
        ("sgd:lr=inf", r"got 'inf'"),
        ("adagrad:state=rows", r"x: adagrad:state: unknown value 'rows'; did you mean 'row'\?"),
        ("adagrad:accumulate=after", r"initial must be over 0 \(try 3.0\)"),
        ("adagrad:accumulate=after,initial=1e-50", r"initial must be over 0"),
        ("adagrad:accumulate=after,initial=1,eps=0.1", r"accumulate=after has no eps"),
        ("adagrad:eps=0", r"a gradient of 0 would give 0 / 0, so eps or initial must be over 0"),
        ("adam:eps=0", r"a gradient of 0 would give 0 / 0, so eps must be over 0"),
        ("adam:beta2=1", r"beta2 must be at most 0.99998\d, got 1.0"),
        ("adam:beta1=0.99999", r"beta1 must be at most 0.99998\d, got 0.99999"),
        ("sgd:lr", r"x: must look like name:option=value,option=value, got 'sgd:lr'"),
    ],
)
def test_a_rule_is_refused_when_it_cannot_work(text: str, message: str) -> None:
    """The error says where, what must hold, what came and the nearest valid name."""
    with pytest.raises(ConfigError, match=message):
        make_optimizer(text, dim=4, where="x")


def test_a_number_is_accepted_when_it_is_a_bound() -> None:
    """Both ends of an option's range are inside."""
    kind = Number(1.0, 0.5, 2.0)

    assert [kind.read(text, where="x") for text in ("0.5", "2")] == [0.5, 2.0]


@given(lr=st.floats(0, 1e6), eps=st.floats(1e-30, 1.0), beta1=st.floats(0, 0.9999))
def test_no_digit_is_lost_when_a_rule_is_written_out_and_read(
    lr: float, eps: float, beta1: float
) -> None:
    """The full text gives back every bit of every number."""
    rule = make_optimizer(f"adam:lr={lr},eps={eps},beta1={beta1}", dim=4)

    again = make_optimizer(rule.text, dim=4)

    assert rule.options.tolist() == again.options.tolist() == [lr, beta1, 0.999, eps]
    assert np.array_equal(rule.kernel_table, again.kernel_table)


@pytest.mark.parametrize("beta2", [0.0, 1e-9, 0.5, 0.99, 0.999, 0.99998])
def test_the_table_of_adam_ends_when_the_corrections_are_one(beta2: float) -> None:
    """The last entries differ from 1 by less than float32 can say; none is 0 but the first."""
    table = make_optimizer(f"adam:beta1=0,beta2={beta2!r}", dim=1).kernel_table

    assert table[:2].tolist() == [0.0, 0.0]
    assert np.float32(table[-2]) == np.float32(table[-1]) == 1.0
    assert (table[2:] > 0.0).all()


RAMP = [float(i) for i in range(1, 11)]
PERSIA_W0 = [0.7306, 0.034, 0.1331, 0.4355, 0.0305, 0.6968]
PERSIA_GRADS = [
    [0.6039, 0.248, 0.8303, 0.8006, 0.683, 0.473],
    [0.4478, 0.967, 0.5724, 0.3074, 0.576, 0.2937],
    [0.2304, 0.9627, 0.3126, 0.8667, 0.6767, 0.6441],
]
ROW_AFTER = "adagrad:state=row,accumulate=after"
PADDLE_ADAM = "adam:lr=0.1,beta1=0.9,beta2=0.999,eps=1e-8"


def test_sgd_gives_the_numbers_of_peers_when_fed_their_cases() -> None:
    """Paddle's naive rule and Monolith's SGD."""
    np.testing.assert_allclose(run("sgd:lr=0.1", [RAMP])[0], [-0.1 * g for g in RAMP], rtol=1e-6)
    np.testing.assert_allclose(run("sgd:lr=0.1", [[1.0]])[0], [-0.1], rtol=1e-6)


def test_row_adagrad_gives_the_numbers_of_paddle_when_fed_its_cases() -> None:
    """One g2sum a row, initial_g2sum as stated: weights and g2sum after one and two steps."""
    weights, state = run(f"{ROW_AFTER},lr=0.1,initial=0.2", [RAMP])
    np.testing.assert_allclose(weights, [-0.1 * g for g in RAMP], rtol=1e-6)
    np.testing.assert_allclose(state, [38.5])

    weights, state = run(f"{ROW_AFTER},lr=0.1,initial=0.2", [RAMP, RAMP])
    np.testing.assert_allclose(weights, [-0.10718885 * g for g in RAMP], rtol=1e-6)
    np.testing.assert_allclose(state, [77.0])

    text = f"{ROW_AFTER},lr=0.05,initial=3"
    weights, state = run(text, [[1.0]])
    np.testing.assert_allclose([*weights, *state], [-0.05, 1.0], rtol=1e-6)
    np.testing.assert_allclose(run(text, [[1.0], [1.0]])[0], [-0.0933013], rtol=1e-6)


def test_element_adagrad_gives_the_numbers_of_paddle_when_fed_two_steps() -> None:
    """One g2sum an element, added after the step."""
    expected = [-0.14082483, -0.24364358, -0.34423259, -0.44444444, -0.54454354]
    expected += [-0.64459765, -0.74463037, -0.84465165, -0.94466625, -1.04467671]

    weights, state = run("adagrad:accumulate=after,lr=0.1,initial=0.2", [RAMP, RAMP])

    np.testing.assert_allclose(weights, expected, rtol=1e-6)
    np.testing.assert_allclose(state, [2 * g * g for g in RAMP])


def test_element_adagrad_gives_the_numbers_of_monolith_when_fed_its_case() -> None:
    """The accumulator moves first; no eps."""
    text = "adagrad:lr=0.1,initial=1,eps=0"

    np.testing.assert_allclose(run(text, [[1.0, 2.0]])[0], [-0.07071067, -0.08944272], rtol=1e-6)


def test_element_adagrad_gives_the_numbers_of_monolith_when_segments_differ() -> None:
    """Two segments of a row are two rules: lr and accumulator 1, and lr and accumulator 2."""
    narrow, _ = run("adagrad:lr=1,initial=1,eps=0", [[1.0]])
    wide, _ = run("adagrad:lr=2,initial=2,eps=0", [[2.0, 3.0]])

    np.testing.assert_allclose([*narrow, *wide], [-0.70710677, -1.6329931, -1.8090681], rtol=1e-6)


def test_element_adagrad_gives_the_numbers_of_persia_when_fed_its_case() -> None:
    """Persia divides by the accumulator before adding; its step is ours with another lr.

    w -= lr * g / sqrt(acc), acc from 0.01, is w -= lr / sqrt(0.01) * g * sqrt(0.01 / (0.01 + G)).
    """
    text = "adagrad:lr=0.1,accumulate=after,initial=0.01"

    weights = np.array(PERSIA_W0) + run(text, PERSIA_GRADS)[0]

    expected = [0.6598564, -0.036559787, 0.04014046, 0.34159237, -0.053671654, 0.6320387]
    np.testing.assert_allclose(weights, expected, atol=3e-6)
    accumulated = [0.6283042, 1.9333843, 1.1247585, 1.496624, 1.2661879, 0.7348535]
    np.testing.assert_allclose(run(text, PERSIA_GRADS)[1] + 0.01, accumulated, rtol=1e-6)


def test_adam_gives_the_numbers_of_paddle_when_fed_its_cases() -> None:
    """Weights and both moments after one step, weights after two."""
    weights, state = run(PADDLE_ADAM, [RAMP])
    np.testing.assert_allclose(weights, [-0.1] * 10, rtol=1e-6)
    np.testing.assert_allclose(state[:10], [0.1 * g for g in RAMP], rtol=1e-6)
    np.testing.assert_allclose(state[10:20], [0.001 * g * g for g in RAMP], rtol=1e-6)
    assert state[20] == 1.0

    weights, state = run(PADDLE_ADAM, [RAMP[:3], RAMP[:3]])
    np.testing.assert_allclose(weights, [-0.19999995, -0.19999997, -0.19999998], rtol=1e-6)
    assert state[-1] == 2.0
