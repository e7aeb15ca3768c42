"""owner.py FOLDER COUNT ARGV...: a run of its own: starts COUNT instances, prints the pids of all that live, sleeps."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from pytest_areal_eval.schedulers.base import InstanceSpec
from pytest_areal_eval.schedulers.local import LocalScheduler

folder, count, argv = Path(sys.argv[1]), int(sys.argv[2]), tuple(sys.argv[3:])
scheduler = LocalScheduler(log_dir=folder / "logs", gpus=[], lock_dir=folder)
handles = [scheduler.start(InstanceSpec(f"m/{i}", argv)) for i in range(count)]
addresses = [status.address for status in scheduler.poll(handles).values()]
print(" ".join(address.nonce for address in addresses if address), flush=True)
time.sleep(300)
