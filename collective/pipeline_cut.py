"""Cuts a model into the stages of a pipeline.

Rooms before and after: a training program gives a torch module; ``pipeline`` runs the stages.

The model's forward is traced (torch.fx) into a list of operations in their order; a stage is a run of them.
Where one begins is said by module names (``cuts``), by ``StageEnd`` modules in the model, or is chosen so
that the heaviest stage is light: half of an operation's weight is its share of the parameters' bytes,
half its share of the measured forward time.

What always holds: a value that a later stage needs goes through all stages between (skip connections), and
so does its gradient. Refused here: a model that cannot be traced, such as one whose forward asks for
values of tensors, and a parameter that two stages use: each would step it by a part of its gradient.
The trace is of the model as it is, in training or not. Stages share the model's own modules,
under their own names. Owner: the calling thread; torch.fx patches all modules while it traces, so no other
thread of the process may run one meanwhile.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, fx, nn
from typing_extensions import override

from collective.errors import GroupError, no_module
from collective.group import Group
from collective.pipeline_timetable import STAGES_MAX

_FREE = ("placeholder", "get_attr", "output")
"""Nodes of a trace that compute nothing: they belong to no stage, or to each that uses them."""

_REPEATS = 3


class StageEnd(nn.Module):
    """Marks, inside a model, where a stage ends: what is called after it belongs to the next."""

    @override
    def forward(self, value: Tensor) -> Tensor:
        """Return the value as it is."""
        return value


@dataclass(frozen=True, slots=True)
class Stage:
    """One part of a model.

    Attributes:
        index: from 0.
        module: takes the values of ``takes`` and returns a tuple of those of ``gives``.
        takes: names of what comes from the stage before; of the first, the model's arguments.
        gives: names of what goes to the next stage; of the last, the model's one output.
    """

    index: int
    module: fx.GraphModule
    takes: tuple[str, ...]
    gives: tuple[str, ...]


def cut_model(
    model: nn.Module,
    stages: int,
    *,
    cuts: Sequence[str] = (),
    example: tuple[Tensor, ...] = (),
    group: Group | None = None,
    uncut: Sequence[str] = (),
) -> list[Stage]:
    """Return the stages of a model.

    Args:
        model: whose forward takes tensors and returns one tensor.
        stages: how many.
        cuts: names of modules, as in ``named_modules``, that begin stages 1, 2, and so on. Empty: where the
            model's ``StageEnd`` modules are; or, if it has none, where the weights are even.
        example: arguments to measure the forward time on; needed to choose cuts.
        group: ranks that choose the same cuts together.
        uncut: names of modules that stay whole, such as those that are recomputed.

    Raises:
        GroupError: no such cut, or the model cannot be cut there. The message says why.
    """
    if not 1 <= stages <= STAGES_MAX:
        raise GroupError(f"a pipeline has 1 to {STAGES_MAX} stages, got {stages}")
    graph = _trace(model, uncut)
    nodes = [node for node in graph.nodes if node.op not in _FREE]
    if cuts:
        begins = _begins_named(model, nodes, cuts)
    elif any(isinstance(module, StageEnd) for module in model.modules()):
        begins = _begins_marked(model, nodes)
    elif stages > 1:
        begins = _begins_even(model, graph, stages, example=example, group=group)
    else:
        begins = []
    if len(begins) + 1 != stages:
        where = "cuts" if cuts else "StageEnd modules"
        raise GroupError(
            f"{stages} stages need {stages - 1} {where}, got {len(begins)}; change either"
        )
    bounds = [0, *begins, len(nodes)]
    part_of = {
        node: part for part in range(stages) for node in nodes[bounds[part] : bounds[part + 1]]
    }
    _refuse_tied(model, graph, part_of)
    return [_stage(model, graph, part_of, index, stages) for index in range(stages)]


class _Tracer(fx.Tracer):
    def __init__(self, uncut: Sequence[str]) -> None:
        super().__init__()
        self._uncut = uncut

    @override
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        is_whole = isinstance(m, StageEnd) or module_qualified_name in self._uncut
        return is_whole or super().is_leaf_module(m, module_qualified_name)


def _trace(model: nn.Module, uncut: Sequence[str]) -> fx.Graph:
    """Trace the model's forward."""
    try:
        return _Tracer(uncut).trace(model)
    except Exception as error:  # the model's own code
        reason = str(error).splitlines()[0] if str(error) else repr(error)
        raise GroupError(
            f"{type(model).__name__} cannot be cut: tracing its forward failed ({reason}); its "
            "control flow must not depend on values of tensors"
        ) from error


def _begins_named(model: nn.Module, nodes: Sequence[fx.Node], cuts: Sequence[str]) -> list[int]:
    """Return where the named modules begin."""
    begins: list[int] = []
    known = [name for name, _ in model.named_modules() if name]
    for name in cuts:
        begin = next((i for i, node in enumerate(nodes) if name in _modules_of(node)), None)
        if begin is None:
            if name in known:
                raise GroupError(f"cut {name!r} is never called")
            raise no_module("cut", name, known)
        if begin <= (begins[-1] if begins else 0):
            raise GroupError(f"cut {name!r} leaves the stage before it empty; cuts go in order")
        begins.append(begin)
    return begins


def _modules_of(node: fx.Node) -> tuple[str, ...]:
    """Return the names of the modules that an operation is part of."""
    return (*node.meta.get("nn_module_stack", {}), str(node.target))


def _begins_marked(model: nn.Module, nodes: Sequence[fx.Node]) -> list[int]:
    """Return where the stages after ``StageEnd`` modules begin."""
    begins = [
        i + 1
        for i, node in enumerate(nodes)
        if node.op == "call_module" and isinstance(model.get_submodule(str(node.target)), StageEnd)
    ]
    if begins and begins[-1] == len(nodes):
        raise GroupError("nothing comes after the last StageEnd; take it out")
    return begins


def _begins_even(
    model: nn.Module,
    graph: fx.Graph,
    stages: int,
    *,
    example: tuple[Tensor, ...],
    group: Group | None,
) -> list[int]:
    """Return where stages of even weight begin, the same on all ranks of a group."""
    if not example:
        raise GroupError("give cuts, or an example batch so that they can be chosen")
    nodes = [node for node in graph.nodes if node.op not in _FREE]
    seconds, no_tensors = _measure(model, graph, nodes, example)
    if group is not None:
        group.maximum(seconds, what="choosing the cuts of a pipeline")
    num_bytes = torch.tensor(_parameter_bytes(model, nodes), dtype=torch.float64)
    weights = seconds / seconds.sum() + num_bytes / num_bytes.sum().clamp(min=1.0)
    crossing = {
        end: _crossing(graph, nodes, end - 1) for end in _ends_between_parameters(model, nodes)
    }
    whole = [end for end, values in crossing.items() if no_tensors.isdisjoint(values)]
    # Where one value alone crosses, a cut costs least. Where there are too few of these, anywhere.
    ends = [end for end in whole if len(crossing[end]) <= 1]
    ends = ends if len(ends) >= stages else whole
    if len(ends) < stages:
        raise GroupError(
            f"{stages} stages, but only {len(ends) - 1} places where no parameter is used on both "
            "sides and only tensors cross; take fewer stages"
        )
    begins = [0, *ends[:-1]]
    loads = [float(weights[begin:end].sum()) for begin, end in zip(begins, ends, strict=True)]
    return [begins[unit] for unit in even_cuts(loads, stages)]


def _ends_between_parameters(model: nn.Module, nodes: Sequence[fx.Node]) -> list[int]:
    """Return after how many operations a cut leaves each parameter on one side; the last is all."""
    last_use: dict[int, int] = {}
    for i, node in enumerate(nodes):
        last_use.update((id(parameter), i) for _, parameter in _parameters_of(model, node))
    ends = []
    reach = -1
    for i, node in enumerate(nodes):
        reach = max([reach, *(last_use[id(p)] for _, p in _parameters_of(model, node))])
        if reach <= i:
            ends.append(i + 1)
    return ends


def even_cuts(loads: Sequence[float], parts: int) -> list[int]:
    """Return where parts 1, 2, ... begin so that the heaviest of ``parts`` runs of loads is light.

    >>> even_cuts([4.0, 1.0, 1.0, 1.0, 1.0, 4.0], 3)
    [1, 5]
    """
    low, high = max(loads), math.fsum(loads)
    best = _cuts_within(loads, parts, high)
    for _ in range(60):  # halves the distance each time: as exact as a float
        middle = (low + high) / 2
        found = _cuts_within(loads, parts, middle)
        if found is None:
            low = middle
        else:
            best, high = found, middle
    assert best is not None
    return best


def _cuts_within(loads: Sequence[float], parts: int, limit: float) -> list[int] | None:
    """Return cuts so that no part is heavier than a limit; None if there are none."""
    cuts: list[int] = []
    load = 0.0
    for i, more in enumerate(loads):
        must = len(loads) - i == parts - len(cuts) - 1  # one for each part that is left
        if i and (must or load + more > limit):
            cuts.append(i)
            load = 0.0
        load += more
    return cuts if len(cuts) == parts - 1 else None


def _measure(
    model: nn.Module, graph: fx.Graph, nodes: Sequence[fx.Node], example: tuple[Tensor, ...]
) -> tuple[Tensor, set[fx.Node]]:
    """Return the least seconds of each operation in some forward passes, and what gives no tensor.

    Returns:
        (nodes,) float64; and the operations whose value cannot go between stages.
    """
    best = dict.fromkeys(nodes, math.inf)
    no_tensors: set[fx.Node] = set()

    class Stopwatch(fx.Interpreter):
        @override
        def run_node(self, n: fx.Node) -> object:
            begin = time.perf_counter()
            result: object = super().run_node(n)
            if n in best:
                best[n] = min(best[n], time.perf_counter() - begin)
            if not isinstance(result, Tensor):
                no_tensors.add(n)
            return result

    stopwatch = Stopwatch(model, graph=graph)
    kept = {name: buffer.clone() for name, buffer in model.named_buffers()}
    with torch.no_grad():
        for _ in range(_REPEATS):
            stopwatch.run(*example)
        for name, buffer in model.named_buffers():  # running means moved
            buffer.copy_(kept[name])
    return torch.tensor([best[node] for node in nodes], dtype=torch.float64), no_tensors


def _parameter_bytes(model: nn.Module, nodes: Sequence[fx.Node]) -> list[int]:
    """Return the bytes of the parameters that each operation is the first to use."""
    seen: set[int] = set()
    sizes = []
    for node in nodes:
        fresh = {id(p): p for _, p in _parameters_of(model, node) if id(p) not in seen}
        seen.update(fresh)
        sizes.append(sum(p.numel() * p.element_size() for p in fresh.values()))
    return sizes


def _parameters_of(model: nn.Module, node: fx.Node) -> list[tuple[str, nn.Parameter]]:
    """Return the parameters that an operation uses, with their names."""
    found: list[tuple[str, nn.Parameter]] = []
    if node.op == "call_module":
        name = str(node.target)
        module = model.get_submodule(name)
        found += [(f"{name}.{inner}", p) for inner, p in module.named_parameters()]
    for source in node.all_input_nodes:
        if source.op == "get_attr":
            owner, _, attribute = str(source.target).rpartition(".")
            value = getattr(model.get_submodule(owner), attribute)
            found += [(str(source.target), value)] if isinstance(value, nn.Parameter) else []
    return found


def _refuse_tied(model: nn.Module, graph: fx.Graph, part_of: dict[fx.Node, int]) -> None:
    """Refuse a parameter that two stages use."""
    users: dict[int, tuple[str, int]] = {}
    for node in graph.nodes:
        if node not in part_of:
            continue
        for name, parameter in _parameters_of(model, node):
            other, part = users.setdefault(id(parameter), (name, part_of[node]))
            if part != part_of[node]:
                both = name if name == other else f"{other}, the same as {name},"
                raise GroupError(
                    f"parameter {both} is used by stages {part} and {part_of[node]}; each would "
                    "step it by a part of its gradient. Put both uses into one stage"
                )


def _crossing(graph: fx.Graph, nodes: Sequence[fx.Node], last: int) -> list[fx.Node]:
    """Return the values that operations after the one at ``last`` need from before."""
    place = {node: i for i, node in enumerate(nodes)}
    return [
        node
        for node in graph.nodes
        if node.op != "get_attr"
        and place.get(node, -1) <= last
        and any(place.get(user, len(nodes)) > last for user in node.users)
    ]


def _stage(
    model: nn.Module, graph: fx.Graph, part_of: dict[fx.Node, int], index: int, stages: int
) -> Stage:
    """Copy one part's operations into a module of its own."""
    nodes = [node for node in graph.nodes if node in part_of]
    arguments = [node for node in graph.nodes if node.op == "placeholder"]
    last = [max(i for i, node in enumerate(nodes) if part_of[node] <= p) for p in range(stages)]
    takes = _crossing(graph, nodes, last[index - 1]) if index else arguments
    if index < stages - 1:
        gives = _crossing(graph, nodes, last[index])
    else:
        output = next(node for node in graph.nodes if node.op == "output")
        if not isinstance(output.args[0], fx.Node):
            raise GroupError(f"{type(model).__name__} must return one tensor, to be in a pipeline")
        gives = [output.args[0]]
    part = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {node: part.placeholder(node.name) for node in takes}
    for node in nodes:
        if part_of[node] == index:
            for source in node.all_input_nodes:
                if source.op == "get_attr" and source not in copies:
                    copies[source] = part.node_copy(source)
            copies[node] = part.node_copy(node, copies.__getitem__)
    part.output(tuple(copies[node] for node in gives))
    module = fx.GraphModule(model, part, class_name=f"Stage{index}")
    module.train(model.training)
    names = [tuple(node.name for node in values) for values in (takes, gives)]
    return Stage(index, module, *names)
