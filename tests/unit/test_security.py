"""Rules of security that hold for all code: nothing is pickled, and no path of a client leads out."""

import ast
import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

import pserver
from pserver.checkpoint.places import open_store
from pserver.server.servicer import Servicer
from pserver.v1 import pserver_pb2 as pb
from pserver.wire.small import build_small

ROOT = Path(__file__).resolve().parent.parent.parent
PRODUCT = ("pserver", "trainer", "collective")
PICKLES = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "joblib"}


def pickled(path: str, text: str) -> Iterator[str]:
    """Yield each import of what loads code with data, and each call that may do so."""
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Import | ast.ImportFrom | ast.Call):
            continue
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [str(node.module)]
        elif isinstance(node.func, ast.Attribute):
            called = ast.unparse(node.func)
            said = {k.arg: ast.unparse(k.value) for k in node.keywords}
            if called in ("np.load", "numpy.load") and said.get("allow_pickle", "False") != "False":
                yield f"{path}:{node.lineno}: {called} with pickles"
            if called == "torch.load" and said.get("weights_only") != "True":
                yield f"{path}:{node.lineno}: {called} without weights_only=True"
        yield from (f"{path}:{node.lineno}: {n}" for n in names if n.split(".")[0] in PICKLES)


def test_nothing_is_pickled() -> None:
    """No file of the product imports a pickler or loads with one."""
    files = [path for name in PRODUCT for path in (ROOT / name).rglob("*.py")]
    problems = [p for path in files for p in pickled(str(path.relative_to(ROOT)), path.read_text())]

    assert len(files) > 100
    assert not problems


@pytest.mark.parametrize(
    "text",
    [
        "import pickle",
        "from pickle import loads",
        "import os, marshal",
        "x = np.load(p, allow_pickle=True)",
        "torch.load(p)",
        "torch.load(p, weights_only=False)",
    ],
)
def test_a_pickler_is_found_when_there_is_one(text: str) -> None:
    """The rule can fail."""
    assert list(pickled("x.py", text))


PATHS = [
    "../out",
    "..",
    ".",
    "/out",
    "v00000001/../../out",
    "a/b",
    "v0000001\x00",
    ".saving-x",
    "~",
]


@pytest.mark.parametrize("path", PATHS)
def test_no_version_or_file_of_a_client_leads_out_of_the_folder(tmp_path: Path, path: str) -> None:
    """Saves and loads under such a name are refused, and nothing is written or read elsewhere."""
    inside = tmp_path / "inside"
    (tmp_path / "out").mkdir()
    store = open_store(str(inside), where="store", writes=True)
    before = sorted(p.relative_to(tmp_path) for p in tmp_path.rglob("*"))

    async def refused() -> None:
        servicer = Servicer(
            shard=1, num_shards=2, queue_max=8, store=store
        )  # shard 0 chooses the name itself
        save = pb.SaveRequest(save_id="a", step="begin", version=path, mode="full")
        load = pb.LoadRequest(load_id="a", step="begin", version=path, on_mismatch="fail")
        for method, request in (("Save", save), ("Load", load)):
            with pytest.raises(pserver.PserverError) as caught:
                await served(servicer, method, request)
            assert not isinstance(caught.value, pserver.InternalError)
        first = Servicer(shard=0, num_shards=2, queue_max=8, store=store)
        await put(first)
        for each in (servicer, first):
            await each.end_saves()
            each.close()

    async def served(servicer: Servicer, method: str, request: pb.SaveRequest) -> None:
        await servicer.call(method, build_small(request))
        if method == "Load":  # which reads in a thread of its own: the failure is told by a look
            told = pb.LoadReply(state="reading")
            while told.state == "reading":
                request.step = "look"
                told = pb.LoadReply.FromString(await servicer.call(method, build_small(request)))
                await asyncio.sleep(0)
            assert told.state == "failed"
            raise pserver.CheckpointError(told.error)

    async def put(servicer: Servicer) -> None:
        begun = pb.SaveRequest(save_id="b", step="begin", mode="full")
        await servicer.call("Save", build_small(begun))
        part = pb.SaveRequest(save_id="b", step="put", name=path, data=b"x")
        with contextlib.suppress(pserver.PserverError):  # a plain name may be taken, inside
            await servicer.call("Save", build_small(part))

    asyncio.run(refused())

    after = [p.relative_to(tmp_path) for p in tmp_path.rglob("*")]
    new = [p for p in after if p not in before]
    assert all(p.parts[:2] == ("inside", ".saving-v00000001") for p in new)
