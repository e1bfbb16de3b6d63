"""What ``table.optimizer`` promises: options that count, texts that last, refusals that help."""

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pserver.errors import ConfigError
from pserver.table.optimizer import COMMON, RULES, make_optimizer
from pserver.table.optimizer_options import Choice, Number
from tests.reference_optim import COMMON as REFERENCE_COMMON
from tests.reference_optim import DEFAULTS, Rule

SHOWS = np.full(1, 4.0, np.float32)
SHOWS.flags.writeable = False


def run(
    text: str, grads: list[list[float]], *, w0: float = 0.5, version: int = 3
) -> tuple[np.ndarray, np.ndarray]:
    """Return weights and state of one row after some gradients."""
    dim = len(grads[0])
    rule = make_optimizer(text, dim=dim)
    row = np.full(dim + rule.state_dim, rule.first_state[-1], np.float32)
    row[dim:][: rule.first_state.size] = rule.first_state[: rule.state_dim]
    row[:dim] = w0
    for i, grad in enumerate(grads):
        array = np.array(grad, np.float32)
        array.flags.writeable = False
        rule.apply(row, np.zeros(1, np.int64), array, version=version + i, shows=SHOWS)
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
        assert next(iter(rule.options)) == "lr"


def test_the_defaults_are_those_of_the_reference_when_nothing_is_given() -> None:
    """No default and no option changes unseen, and a rule's text spells all of them out."""
    for name in RULES:
        full = make_optimizer(name, dim=4).text

        assert full == with_options(name, DEFAULTS[name])
        assert make_optimizer(full, dim=4).text == full
    assert set(RULES) == set(DEFAULTS)
    assert {option: kind.default for option, kind in COMMON.items()} == REFERENCE_COMMON


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
    ("adagrad_decay", "decay_rate"): [{"decay_step": 2}],
    ("adagrad_decay", "decay_step"): [{"decay_step": 1}],
    ("adamw", "weight_decay"): [{"lr": 0.1}],
    **{("lamb", option): [{"lr": 0.1}] for option in ("eps", "weight_decay")},
    ("lamb", "step"): [{"weight_decay": 1.0}],
    ("rmsprop", "eps_at"): [{"eps": 0.01}],
}
"""What else is set when an option is changed, where the defaults alone would not do."""


GRADS = [[0.3, -0.2, 0.1], [0.1, 0.4, -0.2], [-0.1, 0.2, 0.3]]


def differs(one: str, other: str) -> bool:
    """Return whether two rules take a row elsewhere."""
    return not np.allclose(run(one, GRADS)[0], run(other, GRADS)[0], rtol=1e-4, atol=0)


@pytest.mark.parametrize(("name", "option"), OPTIONS)
def test_the_result_changes_when_an_option_changes(name: str, option: str) -> None:
    """No option of any rule is taken and dropped: each one moves the weights elsewhere."""
    kind = RULES[name].options[option]
    for start in STARTS.get((name, option), [{}]):
        values = {**DEFAULTS[name], **start}
        others: list[float | str] = (
            [word for word in kind.words if word != values[option]]
            if isinstance(kind, Choice)
            else [float(values[option]) + 1 if kind.is_whole else float(values[option]) / 2 + 0.01]
        )
        for other in others:
            changed = {**values, option: other}
            assert differs(with_options(name, values), with_options(name, changed)), (start, other)


COMMON_FORMS = [
    ("", "weight_decay=0.1"),
    ("weight_decay=0.1", "weight_decay=0.1,decay=gradient"),
    ("", "clip=0.15"),
    ("", "weight_low=0.52"),
    ("", "weight_high=-0.2"),
]


def test_the_forms_are_of_every_common_option() -> None:
    """No option of all rules is without a form here; of show_scale, see below."""
    others = set(COMMON) - {"show_scale"}
    assert all(any(option in form for _, form in COMMON_FORMS) for option in others)


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize(("without", "form"), COMMON_FORMS)
def test_the_result_changes_when_a_common_option_is_on(name: str, without: str, form: str) -> None:
    """No option that all rules have is taken and dropped by any of them."""
    if "decay=gradient" in form and "weight_decay" in RULES[name].options:
        with pytest.raises(ConfigError, match=f"{name} has no option 'decay'"):
            make_optimizer(f"{name}:{form}", dim=4)
        return
    if name == "summary" and "weight_decay" in form:
        with pytest.raises(ConfigError, match="summary has no option 'weight_decay'"):
            make_optimizer(f"{name}:{form}", dim=4)
        return
    if name == "sgd" and without:
        return  # w -= lr * (g + weight_decay * w) is both
    assert differs(f"{name}:lr=0.1,{without}".rstrip(","), f"{name}:lr=0.1,{form}")


def test_a_common_option_is_spelled_out_only_when_it_is_on() -> None:
    """Off has one text, so that specs that mean the same are equal."""
    plain = make_optimizer("sgd", dim=4).text
    written = "sgd:weight_decay=0,schedule=constant,warmup=0,lr=0.05"
    assert make_optimizer(written, dim=4).text == plain == "sgd:lr=0.05"

    on = "sgd:weight_high=1,clip=2,weight_decay=.5,decay=gradient,warmup=10,weight_low=-1"
    full = make_optimizer(on, dim=4).text
    assert full == (
        "sgd:lr=0.05,warmup=10,weight_decay=0.5,decay=gradient,clip=2.0,"
        "weight_low=-1.0,weight_high=1.0"
    )
    assert make_optimizer(full, dim=4).text == full


def test_weights_stay_in_their_bounds_when_gradients_push_them_out() -> None:
    """The bounds hold after each step, whatever the rule did."""
    for name in RULES:
        weights, _ = run(f"{name}:lr=10,weight_low=-0.25,weight_high=0.75", GRADS)
        assert np.all((weights >= -0.25) & (weights <= 0.75)), name


def test_decoupled_decay_follows_the_learning_rate() -> None:
    """w loses lr * weight_decay * w, with the rate of that push."""
    text = "sgd:lr=0.5,weight_decay=0.5,schedule=polynomial,steps=2"

    weights, _ = run(text, [[0.0]] * 3, w0=1.0, version=0)

    assert weights.tolist() == [0.75 * 0.875]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "adagard",
            r"x: unknown rule 'adagard'; did you mean 'adagrad'\? Valid: adadelta, adagrad, ",
        ),
        (
            "sgd:momentum=0.9",
            r"x: sgd has no option 'momentum' in 'sgd:momentum=0.9'; valid: clip, decay, lr, ",
        ),
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
        ("adam:stp=table", r"adam has no option 'stp' in .*did you mean 'step'"),
        ("sgd:clip=0", r"x: sgd:clip must be a number in \[1e-30, 1e\+15\], got '0'"),
        ("sgd:weight_low=1,weight_high=0", r"weight_low must not be over weight_high"),
        ("sgd:weight_decay=100", r"lr \* weight_decay must be at most 1, .*got 0.05 \* 100"),
        ("sgd:decay=gradient", r"decay says where weight_decay goes; give weight_decay too"),
        ("adamw:decay=gradient", r"adamw has no option 'decay'"),
        ("adagrad_decay:decay_step=1.5", r"decay_step must be a whole number in \[1, 1e\+12\]"),
        ("adagrad_decay:initial=0", r"initial must be a number in \[1e-30, 1e\+06\], got '0'"),
        ("ftrl:beta=0", r"a gradient of 0 would give 0 / 0, so beta or initial must be over 0"),
        ("group_adagrad:beta=0", r"so beta or initial must be over 0"),
        ("rmsprop:eps=0", r"so eps must be over 0"),
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

    assert rule.options.tolist() == again.options.tolist() == [lr, 1.0, beta1, 0.999, eps, 0.0]
    assert np.array_equal(rule.kernel_table, again.kernel_table)


@pytest.mark.parametrize("beta2", [0.0, 1e-9, 0.5, 0.99, 0.999, 0.99998])
def test_the_table_of_adam_ends_when_the_corrections_are_one(beta2: float) -> None:
    """The last entries differ from 1 by less than float32 can say; none is 0 but the first."""
    table = make_optimizer(f"adam:beta1=0,beta2={beta2!r}", dim=1).kernel_table

    assert table[:2].tolist() == [0.0, 0.0]
    assert np.float32(table[-2]) == np.float32(table[-1]) == 1.0
    assert (table[2:] > 0.0).all()


TINY = 1e-44


@pytest.mark.parametrize("name", RULES)
def test_a_gradient_is_divided_by_the_shows_of_its_key_when_show_scale_is_on(name: str) -> None:
    """It is what a quarter of the gradient does, in every rule: powers of 2 divide exactly."""
    grads = [[1.0, -2.0], [0.5, 0.25]]

    scaled = run(f"{name}:lr=0.1,show_scale=on,clip=0.2", grads)
    divided = run(f"{name}:lr=0.1,clip=0.2", [[g / 4 for g in grad] for grad in grads])

    assert np.array_equal(scaled[0], divided[0])
    assert np.array_equal(scaled[1], divided[1])
    plain = run(f"{name}:lr=0.1,clip=0.2", grads)  # adagrad's weights are as they were, not its G
    assert not np.array_equal(np.concatenate(scaled), np.concatenate(plain))


@given(data=st.data())
@pytest.mark.parametrize("name", RULES)
def test_a_gradient_of_0_never_gives_nan_when_options_are_accepted(
    name: str, data: st.DataObject
) -> None:
    """Whatever a rule accepts, at the very ends of its ranges too, zeros leave rows finite."""
    options: dict[str, float | str] = {}
    for option, kind in {**RULES[name].options, **COMMON}.items():
        choices: list[float | str]
        if isinstance(kind, Choice):
            choices = list(kind.words)
        else:
            choices = [kind.low, kind.high, max(kind.low, TINY), max(kind.low, 0.5)]
        value = data.draw(st.sampled_from([None, *choices]), label=option)
        if value is not None:
            options[option] = value
    text = with_options(name, options) if options else name
    try:
        make_optimizer(text, dim=2)
    except ConfigError:
        return
    for w0, version in product((0.0, 0.5), (0, 10**9)):
        weights, state = run(text, [[0.0, -0.0]] * 4, w0=w0, version=version)
        assert np.isfinite(weights).all(), text
        assert np.isfinite(state).all(), text


@pytest.mark.parametrize("name", RULES)
def test_state_is_that_of_the_reference_when_a_row_begins(name: str) -> None:
    """How many floats, and what is in them."""
    for dim in (1, 3):
        fast, slow = make_optimizer(name, dim=dim), Rule(name, dim)
        assert fast.state_dim == slow.state_dim
        first = [*fast.first_state, *[fast.first_state[-1]] * fast.state_dim][: fast.state_dim]
        assert first == slow.first_state


def test_infinity_is_off_and_cannot_be_written() -> None:
    """What bounds nothing is left out."""
    assert make_optimizer("sgd", dim=1).common["clip"] == math.inf
    with pytest.raises(ConfigError, match="got 'inf'"):
        make_optimizer("sgd:clip=inf", dim=1)
