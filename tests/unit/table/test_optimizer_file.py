"""What ``table.optimizer_file`` promises: a user's rule is one of ours, or refused with a reason."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import pserver
from pserver.errors import ConfigError
from pserver.spec import DenseSpec, TableSpec
from pserver.table import optimizer_file
from pserver.table.dense import spelled_out_dense
from pserver.table.optimizer import RULES, make_optimizer
from pserver.table.optimizer_file import load_rule
from pserver.table.sparse import SparseTable

SIGN = """
import numpy as np


class SignMomentum:
    formula = "m = share*m + g; w -= lr * sign(m)"
    options = {"lr": 0.25, "share": 0.5}
    state = "m"

    @staticmethod
    def state_floats(dim):
        return dim

    @staticmethod
    def kernel(slab, stride, dim, row_ids, grads, options, table):
        for i in range(row_ids.size):
            w = row_ids[i] * stride
            for k in range(dim):
                m = options[2] * slab[w + dim + k] + grads[i * dim + k]
                slab[w + dim + k] = m
                slab[w + k] -= options[0] * np.sign(m)
"""

FULL = """
from pserver.kernel import optim
from pserver.table.optimizer_options import Choice, Number
from pserver.table.optimizer_rules import OptimizerRule


def up(slab, stride, dim, row_ids, grads, options, table):
    for i in range(row_ids.size):
        for k in range(dim):
            slab[row_ids[i] * stride + k] += options[0] * grads[i * dim + k]


Either = OptimizerRule(
    formula="w -= lr * g, or w += lr * g",
    options={"lr": Number(1.0, 0.0, 10.0), "way": Choice(("down", "up"))},
    state="none",
    state_dim=lambda dim, values: 0,
    kernel=lambda values: up if values["way"] == "up" else optim.sgd,
    source="a test",
)
"""


@pytest.fixture(autouse=True)
def rules() -> Iterator[None]:
    """Forget the rules that a test added."""
    ours = dict(RULES)
    yield
    RULES.clear()
    RULES.update(ours)
    optimizer_file._LOADED.clear()


def write(folder: Path, text: str, name: str = "my_rule.py") -> Path:
    path = folder / name
    path.write_text(text)
    return path


# Without the compiler, integers that wrap around in a shard's thread would warn.
@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")
def test_a_rule_from_a_file_trains_when_a_cluster_uses_it(tmp_path: Path) -> None:
    """The whole way in one process: load, create the table, push, pull, with common options."""
    name = load_rule(f"{write(tmp_path, SIGN)}:SignMomentum")
    rule = f"{name}:share=0.75,weight_low=-0.4,schedule=step,steps=1,gamma=0.5"

    with pserver.embedded(2) as client:
        spec = client.create_table(
            pserver.TableSpec(name="t", dim=2, optimizer=rule, initializer="zeros")
        )
        for grads in ([1.0, -2.0], [-0.5, 1.0]):
            client.push("t", [7, 8], [grads, grads])
        client.flush()
        weights = client.pull("t", [7, 8])

    assert name == "SignMomentum"
    assert spec.optimizer == (
        "SignMomentum:lr=0.25,share=0.75,schedule=step,steps=1,gamma=0.5,weight_low=-0.4"
    )
    assert weights.tolist() == [[-0.375, 0.375]] * 2


def test_an_optimizer_rule_is_loaded_with_all_that_it_says(tmp_path: Path) -> None:
    """Its options choose among kernels, ours and the file's."""
    name = load_rule(f"{write(tmp_path, FULL)}:Either")
    for way, sign in (("down", -1.0), ("up", 1.0)):
        spec = TableSpec(name="t", dim=1, optimizer=f"{name}:way={way}", initializer="zeros")
        table, weights = SparseTable(spec), np.zeros(1, np.float32)

        table.push(np.array([1], np.uint64), np.full(1, 3.0, np.float32))
        table.pull(np.array([1], np.uint64), weights)

        assert weights[0] == sign * 3.0


def test_a_dense_table_takes_the_rule_when_its_file_says_it_may(tmp_path: Path) -> None:
    """Whether weights step each by itself is for the file to say; without a word they may not."""
    assert SIGN.count("class SignMomentum:\n") == 1
    said = SIGN.replace("class SignMomentum:\n", 'class Apart:\n    couples = ""\n')
    load_rule(f"{write(tmp_path, SIGN)}:SignMomentum")
    load_rule(f"{write(tmp_path, said, 'apart.py')}:Apart")

    assert spelled_out_dense(DenseSpec(name="d", length=3, optimizer="Apart")).length == 3
    with pytest.raises(ConfigError, match='its file does not say couples = ""'):
        spelled_out_dense(DenseSpec(name="d", length=3, optimizer="SignMomentum"))


def test_the_rule_is_listed_with_its_words_when_loaded(tmp_path: Path) -> None:
    """Defaults, formula and floats of state are those of the file."""
    load_rule(f"{write(tmp_path, SIGN)}:SignMomentum")

    assert RULES["SignMomentum"].formula == "m = share*m + g; w -= lr * sign(m)"
    bound = make_optimizer("SignMomentum", dim=3)
    assert (bound.text, bound.state_dim) == ("SignMomentum:lr=0.25,share=0.5", 3)


def test_loading_twice_does_nothing_and_another_rule_of_that_name_is_refused(
    tmp_path: Path,
) -> None:
    """A name stands for one rule for as long as the process lives."""
    path = write(tmp_path, SIGN)
    load_rule(f"{path}:SignMomentum")
    rule = RULES["SignMomentum"]

    load_rule(f"{path}:SignMomentum")

    assert RULES["SignMomentum"] is rule
    other = write(tmp_path, SIGN.replace("0.25", "0.5"), "other.py")
    with pytest.raises(ConfigError, match="there is a rule 'SignMomentum' already"):
        load_rule(f"{other}:SignMomentum")


KERNEL = "def kernel(slab, stride, dim, row_ids, grads, options, table):"


def bad(body: str, *, options: str = '{"lr": 1.0}', kernel: str = "pass") -> str:
    """Return a file whose rule has something wrong."""
    return f"""
import numpy as np
class Bad:
    formula = "x"
    options = {options}
    {body}
    @staticmethod
    {KERNEL}
        {kernel}
"""


SOUND = "state_floats = 0"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import nothing_of_that_name", "the file raised ModuleNotFoundError"),
        ("class Bat: pass", "the file has no 'Bad'; did you mean 'Bat'"),
        ("class Bad: formula = ''", "has no options; a rule needs formula, options, state_floats"),
        (bad("pass"), "has no state_floats; a rule needs"),
        (bad(SOUND, options="[1]"), r"options must map names to defaults, got \[1\]"),
        (bad(SOUND, options='{"rate": 1.0}'), "the first option must be lr, got rate"),
        (bad(SOUND, options="{}"), "the first option must be lr, got none"),
        (bad(SOUND, options='{"lr": "x"}'), "option 'lr' must be a number of at most 1e"),
        (bad(SOUND, options='{"lr": 1.0, "clip": 1.0}'), "option 'clip' must have another name"),
        (bad(SOUND, kernel="slab.nothing()"), "its kernel cannot run: "),
        (bad(SOUND, kernel="slab[0] = np.nan"), "left NaN or infinity in a row"),
        (bad(SOUND, kernel="slab[stride] = 7"), "changed row 1 when the push named rows 2 and 0"),
        (bad("state_floats = -1"), "state_floats must be a whole number from 0, got -1"),
    ],
)
def test_a_file_is_refused_when_its_rule_cannot_work(
    tmp_path: Path, text: str, message: str
) -> None:
    """The error names the file and says what must hold; nothing is added."""
    path = write(tmp_path, text)
    before = set(RULES)

    with pytest.raises(ConfigError, match=message) as caught:
        load_rule(f"{path}:Bad")

    assert str(path) in str(caught.value)
    assert set(RULES) == before


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("my_rule.py", "must look like path/my_rule.py:Name"),
        ("nowhere/my_rule.py:Name", "cannot read nowhere/my_rule.py: No such file"),
        (":Name", "must look like"),
        ("a.py:1", "must look like"),
    ],
)
def test_a_name_is_refused_when_it_leads_to_no_file(text: str, message: str) -> None:
    """The error shows the form."""
    with pytest.raises(ConfigError, match=message):
        load_rule(text)


def test_a_built_in_name_is_refused(tmp_path: Path) -> None:
    """Nobody's sgd is silently another."""
    path = write(tmp_path, SIGN.replace("SignMomentum", "sgd"))
    with pytest.raises(ConfigError, match="there is a rule 'sgd' already"):
        load_rule(f"{path}:sgd")
