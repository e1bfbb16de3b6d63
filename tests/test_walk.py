"""The failures of other systems that must not be ours: each has tests by its name, so that none can vanish.

The names are those of a list of bug reports of other parameter servers, by group and number: A of several
trainers, B of the network, C of memory, D of saves, E of dead and waiting processes, F of speed, G of input, H of
pipelines and collectives, I of deployment, J of metrics, K of the first hour. ``test_a2_no_row_of_many_rounds_is_lost``
proves that A2 does not happen here.
"""

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent

PROVED = {
    "a1": "a trainer is served or heard while a round is collected, and rounds mix",
    "a2": "rows of a sparse gradient vanish in sync",
    "a3": "a key that repeats in a batch breaks the step, or steps more than once",
    "a4": "two looks at a new key give two vectors",
    "a5": "keys such as -1 and -2 crash or vanish",
    "a6": "large ids work with servers and not alone, or the other way round",
    "a7": "an id that was not seen in training ends an evaluation",
    "a8": "a learning-rate schedule has no effect",
    "a9": "clipping by global norm sees a part of the gradient only",
    "a10": "one trainer and several learn differently in sync",
    "a11": "runs of one async job end far from each other",
    "a12": "the loss stands still once an embedding is sparse",
    "a13": "rows that are not in the batch change, or users expect them to",
    "a14": "a gradient of zero is taken for a row that was not used",
    "a15": "an empty bag gives NaN",
    "a16": "a trainer with an empty batch holds up or breaks the job",
    "a17": "lengths that do not fit give an obscure result",
    "a18": "dense and sparse gradients of a step raise the version by two",
    "a19": "rows or shards begin with the same random numbers",
    "a20": "one trainer fails, and what the others learn is spoilt",
    "a21": "a geo window is not waited for, or the last one is lost",
    "a22": "one bad value lives on in the optimizer's state",
    "b1": "a message above the limit of gRPC ends the job",
    "b2": "one tensor is above the limit, though others fit",
    "b3": "a table above 32 bits fails, or gets another optimizer than was asked for",
    "b4": "a server is back, and clients go on waiting",
    "b5": "a retry hangs for ever",
    "b6": "a dead server is noticed late, or a barrier runs into a deadline",
    "b7": "a data loader with worker processes beside a client stands still",
    "b8": "two servers on one port start, and clients reach one or the other",
    "b9": "calls that wait fill the pool, and those that would free them wait behind",
    "b11": "a connection is closed for too many pings",
    "b12": "a proxy variable makes calls inside a cluster fail",
    "b13": "more than two gigabytes in one message crash or stand still",
    "c1": "memory, files or threads grow until the process is killed",
    "c2": "reads of an evaluation make rows",
    "c3": "rows pile up, since nobody says what may go",
    "c4": "each restore makes memory larger",
    "c6": "what is refused makes a table grow",
    "c7": "rows cannot be taken away",
    "c8": "a table that grows, or is full, ends its server",
    "c9": "a queue without a limit fills the memory",
    "d1": "after a restore weights and optimizer state are of different moments",
    "d2": "killed, or the disk is full, during a save, and the broken version is chosen",
    "d3": "a restore that loads nothing ends without an error",
    "d4": "the documented way to save and restore does not work",
    "d5": "another number of servers cannot restore, or tables differ then",
    "d6": "weights come back and state silently does not",
    "d7": "deltas on a full version give old values",
    "d8": "an empty shard or table cannot be loaded or read",
    "d9": "the files of several servers cannot be made one",
    "d10": "one server comes back from a version, and nobody says that it is behind the others",
    "e1": "trainers with unequal numbers of batches wait for each other",
    "e2": "a server dies or comes back empty, and the rest hang or go on with nothing",
    "e3": "both sides wait on full queues",
    "e4": "the job is over or has failed, and some of its processes stay",
    "e5": "a shutdown waits for ever for what is still to be sent",
    "e6": "a trainer that comes back is confused with its old process",
    "e7": "one thread's wait is for the calls of all threads",
    "e9": "a process stands still, and nobody says whom he waits for",
    "f1": "one server has most of the rows",
    "f4": "a step is many small calls",
    "g1": "ids of a wrong type are read bit by bit",
    "g2": "samples without a value in some slot fail",
    "g3": "input ends in the middle of a line, and that line is trained on",
    "g4": "missing values fail, or become something else",
    "g5": "the same data in another form gives other batches",
    "g6": "a byte-order mark or odd line ends stick to a value",
    "h1": "fewer micro-batches than stages hang a pipeline",
    "h2": "a batch does not divide into micro-batches, and a stage receives into a buffer of another size",
    "h3": "a stage fails, and the others show a connection that broke",
    "h4": "a value that is needed two stages later is lost, tied weights get half a gradient",
    "h5": "ranks with more batches than others hang in their all-reduce",
    "h6": "a rank ends, and the others wait without a limit",
    "h7": "an all-reduce works with two ranks and with one length only",
    "h8": "ranks that cannot reach each other wait without a word",
    "i1": "a server is back under another address, and trainers keep the old one",
    "i2": "a name or server that comes late ends jobs again and again",
    "i3": "process 1 ignores SIGTERM, or calls in flight are cut off",
    "i4": "a server cannot start where IPv6 is off",
    "i5": "bound to the wildcard of one family, dead to clients of the other",
    "i6": "trainers see that nobody answers, and the reason stands in another process's log",
    "i7": "what may be tried again and what may not have one exit status",
    "i8": "a container is replaced, and its log is gone",
    "j1": "metrics of processes that are gone add up",
    "j2": "the number of series has no bound",
    "j3": "nobody says what a restore or a save did",
    "k1": "generated code is newer than the installed protobuf",
    "k2": "the documented example does not run as written",
    "k3": "a table is not trained, and nothing says so",
    "k4": "platforms, files, other sizes and full tables are asked for again and again",
    "k5": "a part that is not installed is found out late, as something else",
}
"""What goes wrong elsewhere, by the name that its tests have."""


def functions() -> set[str]:
    """Return the names of all test functions, in lower case."""
    texts = (path.read_text(encoding="utf-8") for path in TESTS.rglob("test_*.py"))
    return {
        name.lower() for text in texts for name in re.findall(r"^\s*def (test_\w+)", text, re.M)
    }


NAMES = functions()


@pytest.mark.parametrize("name", PROVED)
def test_each_failure_has_a_test_by_its_name(name: str) -> None:
    """At least one test function in ``tests`` is called ``test_NAME_...``."""
    assert any(one.startswith(f"test_{name}_") for one in NAMES), PROVED[name]
