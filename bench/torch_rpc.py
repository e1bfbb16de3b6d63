"""A parameter server on torch.distributed.rpc: what one would write without a product.

Run as a process: ``python -m bench.torch_rpc server|client PORT ...``. Pull is an index_select, push
a step of torch's sparse Adagrad on the server; TensorPipe over TCP.
"""

import argparse
import json
import time
from collections import deque
from typing import Any

import torch
from torch import Tensor
from torch.distributed import rpc

from bench.common import DIM, distinct_keys

_STATE: dict[str, Any] = {}


def _make(num_rows: int) -> None:
    weight = torch.nn.Parameter(torch.zeros(num_rows, DIM))
    _STATE["weight"] = weight
    _STATE["optimizer"] = torch.optim.Adagrad([weight], lr=0.05)


def pull(row_ids: Tensor) -> Tensor:
    """Return the named rows."""
    weight: Tensor = _STATE["weight"]
    return weight.detach().index_select(0, row_ids)


def push(row_ids: Tensor, grads: Tensor) -> int:
    """Step the named rows."""
    weight = _STATE["weight"]
    weight.grad = torch.sparse_coo_tensor(
        row_ids[None], grads, weight.shape, is_coalesced=True, check_invariants=False
    )
    _STATE["optimizer"].step()
    return 0


def _join(rank: int, port: str) -> None:
    options = rpc.TensorPipeRpcBackendOptions(
        num_worker_threads=4, init_method=f"tcp://127.0.0.1:{port}", _transports=["uv"]
    )
    rpc.init_rpc(  # type: ignore[no-untyped-call]
        f"rank{rank}", rank=rank, world_size=2, rpc_backend_options=options
    )


def _serve(port: str, num_rows: int) -> None:
    _make(num_rows)
    _join(0, port)
    rpc.shutdown()


def _client(port: str, num_rows: int, calls: int) -> None:
    _join(1, port)
    row_ids = [torch.from_numpy((k % num_rows).astype("int64")) for k in distinct_keys(20)]
    grads = [torch.randn(ids.numel(), DIM) * 0.01 for ids in row_ids]
    result = {}
    for verb in ("pull", "push"):
        for window in (1, 4):
            result[f"{verb}_{window}"] = _measure(verb, window, row_ids, grads, calls)
    print(json.dumps(result), flush=True)
    rpc.shutdown()


def _measure(
    verb: str, window: int, row_ids: list[Tensor], grads: list[Tensor], calls: int
) -> float:
    """Return keys a second."""
    open_calls: deque[Any] = deque()
    keys, begin = 0, 0.0
    for i in range(-10, calls):
        if i == 0:
            begin = time.perf_counter()
        ids = row_ids[i % len(row_ids)]
        arguments = (ids,) if verb == "pull" else (ids, grads[i % len(grads)])
        open_calls.append(rpc.rpc_async("rank0", pull if verb == "pull" else push, arguments))
        if len(open_calls) >= window:
            open_calls.popleft().wait()
        keys += ids.numel() if i >= 0 else 0
    while open_calls:
        open_calls.popleft().wait()
    return keys / (time.perf_counter() - begin)


def _main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.torch_rpc")
    parser.add_argument("role", choices=("server", "client"))
    parser.add_argument("port")
    parser.add_argument("rows", type=int)
    parser.add_argument("calls", type=int, nargs="?", default=0)
    given = parser.parse_args()
    if given.role == "server":
        _serve(given.port, given.rows)
    else:
        _client(given.port, given.rows, given.calls)


if __name__ == "__main__":
    _main()
