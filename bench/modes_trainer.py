"""One trainer of ``bench modes``: runs a job for each line of settings that it is given.

Run as a process: ``python -m bench.modes_trainer``. A line of standard input is a JSON object with settings of
``trainer run``; the answer is a line of standard output with the figures of that run.
"""

import json
import sys

import pserver
from trainer.config import RunSettings
from trainer.job.run import run


def main() -> None:
    """Answer until the input ends."""
    pserver.configure_logs("warning")
    for line in sys.stdin:
        settings = RunSettings.make(json.loads(line), origins={})
        print(json.dumps(run(settings).as_dict()), flush=True)


if __name__ == "__main__":
    main()
