"""family.py FILE [stubborn | STATUS]: starts a daemon (double fork, own session), writes both pids to FILE, sleeps.

With ``stubborn`` both ignore SIGTERM; with a STATUS it exits with that at once and leaves the daemon behind.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

out, how = Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else ""
if how == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
r, w = os.pipe()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.write(w, str(os.getpid()).encode())
        os.closerange(0, 64)
        time.sleep(300)
    os._exit(0)
os.wait()
pids = f"{os.getpid()} {os.read(r, 32).decode()}"
out.with_suffix(".new").write_text(pids)
out.with_suffix(".new").rename(out)
if how.isdigit():
    sys.exit(int(how))
time.sleep(300)
