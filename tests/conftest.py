"""What all tests share: the profiles of hypothesis, and bytecode for the processes that tests start.

``fast`` is the default: few examples, the same ones each time, so that a run never fails by luck.
``HYPOTHESIS_PROFILE=deep`` draws many at random and prints how to repeat a failure.
"""

import os
import sys
from collections.abc import Iterator

import numpy as np
import pytest
import structlog
from hypothesis import HealthCheck, settings

settings.register_profile(
    "fast",
    deadline=None,  # the first example compiles kernels
    derandomize=True,
    max_examples=25,
    stateful_step_count=25,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "deep", deadline=None, max_examples=500, stateful_step_count=50, print_blob=True
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fast"))

# Tests start hundreds of processes. Without bytecode each of them compiles every module of ours anew, which is
# 0.5 of the 1.4 s of CPU that a server needs to start; the kernels' cache lies in the same folders anyway.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

if os.environ.get("NUMBA_DISABLE_JIT", "0") != "0":
    np.seterr(all="ignore")  # plain Python would warn where a kernel's integers wrap around


@pytest.fixture(autouse=True)
def logs_as_they_were() -> Iterator[None]:
    """Leave no test's settings of logs to the next one."""
    yield
    structlog.reset_defaults()
