"""slurm_owner.py FOLDER COUNT GPUS LEASE_S ARGV...: a run of its own: starts COUNT instances, tells them, sleeps.

It prints one line of JSON: ``[[nonce, node, [gpu, ...]], ...]``.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from pytest_areal_eval.schedulers.base import InstanceSpec, Shape, State
from pytest_areal_eval.schedulers.slurm import SlurmScheduler

folder, count, gpus, lease_s, argv = (
    Path(sys.argv[1]),
    int(sys.argv[2]),
    int(sys.argv[3]),
    float(sys.argv[4]),
    sys.argv[5:],
)
scheduler = SlurmScheduler(shared_dir=folder, lease_s=lease_s)
handles = [scheduler.start(InstanceSpec(f"m/{i}", tuple(argv), shape=Shape(gpus_per_node=gpus))) for i in range(count)]
while any(status.state is not State.UP for status in scheduler.poll(handles).values()):
    time.sleep(0.1)
told = [status.address for status in scheduler.poll(handles).values()]
print(json.dumps([(one.nonce, one.nodes[0], one.gpus[0]) for one in told if one]), flush=True)
time.sleep(300)
