"""ray_owner.py FOLDER ADDRESS COUNT ARGV...: a run of its own: starts COUNT instances, prints their nonces, sleeps."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from pytest_areal_eval.schedulers.base import InstanceSpec, State
from pytest_areal_eval.schedulers.ray.scheduler import RayScheduler

folder, address, count, argv = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), tuple(sys.argv[4:])
scheduler = RayScheduler(log_dir=folder / "logs", address=address)
handles = [scheduler.start(InstanceSpec(f"m/{i}", argv)) for i in range(count)]
while any(status.state is not State.UP for status in scheduler.poll(handles).values()):
    time.sleep(0.05)
print(" ".join(status.address.nonce for status in scheduler.poll(handles).values() if status.address), flush=True)
time.sleep(300)
