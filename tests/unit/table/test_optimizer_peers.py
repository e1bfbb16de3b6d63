"""The numbers of other parameter servers' tests, and what our rule is called for each of them.

``CASES`` are those that concern an optimizer; ``test_peer_cases`` says where the others are. A
case's id begins with the peer: paddle is PaddlePaddle/Paddle, edl sql-machine-learning/elasticdl,
monolith bytedance/monolith, xdl alibaba/x-deeplearning, persia PersiaML/PERSIA, deeprec
DeepRec-AI/DeepRec, torchrec pytorch/torchrec, tfra tensorflow/recommenders-addons, pslite
dmlc/ps-lite, difacto dmlc/difacto.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest

from pserver.table.optimizer import make_optimizer

RAMP = tuple(float(i) for i in range(1, 11))
MONOLITH = (10.0, 1.0)
PERSIA_W0 = [0.7306, 0.034, 0.1331, 0.4355, 0.0305, 0.6968]
PERSIA_W0 += [0.1528, 0.7074, 0.5598, 0.0271, 0.7671, 0.8731]
PERSIA_GRADS = (
    (0.6039, 0.248, 0.8303, 0.8006, 0.683, 0.473, 0.0381, 0.8375, 0.5836, 0.8673, 0.2224, 0.404),
    (0.4478, 0.967, 0.5724, 0.3074, 0.576, 0.2937, 0.0995, 0.664, 0.7718, 0.3016, 0.0246, 0.6975),
    (
        0.2304,
        0.9627,
        0.3126,
        0.8667,
        0.6767,
        0.6441,
        0.0131,
        0.1702,
        0.8901,
        0.4696,
        0.2655,
        0.0545,
    ),
)
PERSIA_W = [0.6598564, -0.036559787, 0.04014046, 0.34159237, -0.053671654, 0.6320387]
PERSIA_W += [0.1387946, 0.6141905, 0.47925496, -0.06816861, 0.7330182, 0.81526995]
PERSIA_G = [0.6283042, 1.9333843, 1.1247585, 1.496624, 1.2661879, 0.7348535]
PERSIA_G += [0.021523468, 1.1812702, 1.7385421, 1.073696, 0.13055718, 0.6626925]
STD_ADAGRAD_W = [-0.14082483, -0.24364358, -0.34423259, -0.44444444, -0.54454354]
STD_ADAGRAD_W += [-0.64459765, -0.74463037, -0.84465165, -0.94466625, -1.04467671]
ADAM_V = [0.000999987125, 0.0039999485, 0.00899988413, 0.015999794, 0.0249996781]
ADAM_V += [0.0359995365, 0.0489993691, 0.063999176, 0.0809989572, 0.0999987125]
SHARED_ADAM_W = [-0.17048274, -0.17936697, -0.18587151, -0.19024663, -0.19294385]
SHARED_ADAM_W += [-0.19442804, -0.19508504, -0.19520115, -0.19497581, -0.19454301]


def times(scale: float, values: Sequence[float]) -> list[float]:
    return [scale * value for value in values]


@dataclass(frozen=True)
class Case:
    """What a peer computed: weights after some gradients, and the first floats of state."""

    text: str
    grads: Sequence[Sequence[float]]
    weights: Sequence[float]
    state: Sequence[float] = ()
    w0: Sequence[float] = ()
    state0: Sequence[float] = ()
    version: int = 0
    rtol: float = 1e-6
    atol: float = 1e-7


PADDLE = "lr=0.1,weight_low=-10,weight_high=10"
ROW = f"adagrad:{PADDLE},state=row,accumulate=after,initial=0.2"
MADAM = f"beta1=0.9,beta2=0.999,eps=1e-8,{PADDLE}"
ACCUMULATED = "adagrad:lr=0.1,initial=1,eps=0"
EDL = "adam:lr=0.1,step=table"
FTRL = "ftrl:lr=0.01,beta=0,initial=0.1"
DELTA = "adadelta:lr=0.01,rho=0.9,eps=0.01"
V2 = "rmsprop:lr=0.01,rho=0.9,eps=1,variant=v2"
GROUP = "group_adagrad:lr=0.01,beta=1"
XDL_RMS = (
    "rmsprop:lr=1,rho=0.99,eps=1e-30"  # its eps is 0, which would give 0 / 0 for a gradient of 0
)

CASES = {
    "paddle-naive-1": Case(f"sgd:{PADDLE}", (RAMP,), times(-0.1, RAMP)),
    "paddle-adagrad-1": Case(ROW, (RAMP,), times(-0.1, RAMP), (38.5,)),
    "paddle-adagrad-2-derived": Case(ROW, (RAMP,) * 2, times(-0.107188852, RAMP), (77.0,)),
    "paddle-adagrad-doc": Case(
        "adagrad:lr=0.05,state=row,accumulate=after,initial=3", ((1.0,),) * 2, (-0.0933013,), (2.0,)
    ),
    "paddle-stdadagrad-2-derived": Case(
        f"adagrad:{PADDLE},accumulate=after,initial=0.2",
        (RAMP, RAMP),
        STD_ADAGRAD_W,
        tuple(2 * g * g for g in RAMP),
    ),
    "paddle-adam-1": Case(
        f"adam:{MADAM}",
        (RAMP,),
        (-0.0999999642, *[-0.099999994] * 6, -0.100000001, -0.100000009, -0.100000001),
        (*times(0.1, RAMP), *ADAM_V),
        rtol=2e-5,  # its digits carry the error of 1 - float32(0.999)
    ),
    "paddle-adam-2-derived": Case(
        f"adam:{MADAM}", (RAMP[:3],) * 2, (-0.19999995, -0.19999997, -0.19999998)
    ),
    "paddle-sharedadam-derived": Case(
        f"shared_adam:{MADAM}",
        (RAMP, RAMP),
        SHARED_ADAM_W,
        (1.045, 0.0769615, 0.9**3, 0.999**3),
        rtol=1e-5,
    ),
    "paddle-sharedadam-1": Case(
        f"shared_adam:{MADAM}", (RAMP,), (-0.1,) * 10, (0.55, 0.0385, 0.81, 0.998001), rtol=1e-5
    ),
    "edl-adam-old-row": Case(EDL, ((1.0,),) * 2, (-0.1314178004,), version=3, rtol=1e-5),
    "edl-adam-new-row": Case(EDL, ((1.0,),), (-0.0545489238,), version=4, rtol=1e-5),
    "edl-staleness": Case("sgd:lr=0.1", ((0.2, 0.1),), (1.18, 0.79), w0=(1.2, 0.8)),
    "monolith-sgd": Case("sgd:lr=0.1", ((1.0,),), (-0.1,)),
    "monolith-adagrad": Case(ACCUMULATED, ((1.0, 2.0),), (-0.07071067, -0.08944272)),
    "monolith-adagrad-wd": Case(
        f"{ACCUMULATED},weight_decay=0.1,decay=gradient",
        ((1.0, 2.0),) * 2,
        (-0.128173, -0.155943),
        atol=1e-6,
    ),
    "monolith-adagrad-two-segments": Case(
        "adagrad:lr=1,initial=1,eps=0", ((1.0,),), (-0.70710677,), (2.0,)
    ),
    "monolith-adagrad-two-segments-2": Case(
        "adagrad:lr=2,initial=2,eps=0", ((2.0, 3.0),), (-1.6329931, -1.8090681), (6.0, 11.0)
    ),
    "monolith-adagrad-restored": Case(
        "adagrad:lr=1,initial=1,eps=0", ((1.0,),), (-0.57735026,), state0=(2.0,)
    ),
    "monolith-adagrad-restored-2": Case(
        "adagrad:lr=2,initial=2,eps=0",
        ((2.0, 3.0),),
        (-1.264911, -1.3416407),
        state0=(6.0, 11.0),
    ),
    "monolith-ftrl": Case(FTRL, (MONOLITH,), (-0.009995, -0.00953463), atol=1e-6),
    "monolith-ftrl-2": Case(FTRL, (MONOLITH,) * 2, (-0.0170643, -0.0164353), atol=1e-6),
    "monolith-adadelta": Case(DELTA, (MONOLITH,), (-0.0031607, -0.0030151), (10.0, 0.1), atol=1e-6),
    "monolith-adadelta-2": Case(DELTA, (MONOLITH,) * 2, (-0.0064035, -0.0061047), atol=1e-6),
    "monolith-momentum": Case("momentum:lr=0.01", (MONOLITH,), (-0.1, -0.01)),
    "monolith-momentum-2": Case("momentum:lr=0.01", (MONOLITH,) * 2, (-0.29, -0.029)),
    "monolith-rmsprop-v2": Case(V2, (MONOLITH,), (-0.0090909, -0.005), atol=1e-6),
    "monolith-rmsprop-v2-2": Case(V2, (MONOLITH,) * 2, (-0.0158549, -0.0092045), atol=1e-6),
    "monolith-group-adagrad": Case(f"{GROUP},l2=1", ((10.0,),), (-0.008182,), atol=1e-6),
    "monolith-group-adagrad-2": Case(f"{GROUP},l2=1", ((10.0,),) * 2, (-0.014125,), atol=1e-6),
    "monolith-group-adagrad-3": Case(
        f"{GROUP},l2=0.5", (MONOLITH,), (-0.008639, -0.000864), atol=1e-6
    ),
    "monolith-group-adagrad-4": Case(
        f"{GROUP},l2=0.5", (MONOLITH, (1.0, 5.0)), (-0.009096, -0.004778), atol=1e-6
    ),
    "monolith-group-adagrad-5": Case(GROUP, (MONOLITH,), (-0.009091, -0.000909), atol=1e-6),
    "monolith-group-adagrad-6": Case(f"{GROUP},l2=1000", (MONOLITH,), (0.0, 0.0)),
    "xdl-rmsprop": Case(XDL_RMS, ((1.0,),) * 3, (-22.891302,), rtol=1e-5),
    "xdl-rmsprop-1": Case(XDL_RMS, ((1.0,),), (-10.0,), rtol=1e-5),
    "xdl-rmsprop-2": Case(XDL_RMS, ((1.0,),) * 2, (-17.088812,), rtol=1e-5),
    "xdl-momentum": Case("momentum:lr=1,momentum=0.5", ((1.0,),) * 3, (-4.25,)),
    "xdl-momentum-2": Case("momentum:lr=1,momentum=0.5", ((1.0,),) * 2, (-2.5,)),
    # Persia divides by sqrt(acc) before it adds, acc from 0.01. That is our rule with another lr:
    # 0.01 * g / sqrt(0.01 + G) = 0.1 * g * sqrt(0.01 / (0.01 + G)).
    "persia-adagrad": Case(
        "adagrad:lr=0.1,accumulate=after,initial=0.01",
        PERSIA_GRADS,
        PERSIA_W,
        tuple(g - 0.01 for g in PERSIA_G),
        w0=PERSIA_W0,
        atol=3e-6,
    ),
    **{
        # 18 equal cells, loss = sum(2 w), before updates 2 to 5: w is the loss over 36.
        f"deeprec-adagrad-decay{'' if n == 4 else f'-{n}'}": Case(
            "adagrad_decay:lr=0.1,initial=0.1,decay_rate=0.9,decay_step=2",
            ((2.0,),) * n,
            (loss / 36,),
            w0=(1.0,),
            atol=2e-5,
        )
        for n, loss in enumerate((36.0, 32.444176, 29.847788, 27.74195, 25.852505))
        if n
    },
}


@pytest.mark.parametrize("name", CASES)
def test_the_numbers_are_those_of_the_peer(name: str) -> None:
    """Weights, and state where the peer tells it, after the peer's gradients."""
    case = CASES[name]
    dim = len(case.weights)
    rule = make_optimizer(case.text, dim=dim)
    first = [*rule.first_state, *[rule.first_state[-1]] * rule.state_dim][: rule.state_dim]
    row = np.array([*(case.w0 or [0.0] * dim), *(case.state0 or first)], np.float32)

    for i, grad in enumerate(case.grads):
        array = np.array(grad, np.float32)
        array.flags.writeable = False
        rule.apply(row, np.zeros(1, np.int64), array, version=case.version + i)

    np.testing.assert_allclose(row[:dim], case.weights, rtol=case.rtol, atol=case.atol)
    state = row[dim:][: len(case.state)]
    np.testing.assert_allclose(state, case.state, rtol=max(case.rtol, 1e-6))
