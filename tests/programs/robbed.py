"""robbed.py MARKER HOST PORT COMMAND...: runs COMMAND; the first time, somebody else takes its port just before."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

marker, host, port, command = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4:]
if os.path.exists(marker):
    os.execvp(command[0], command)
with open(marker, "w"), socket.create_server((host, port)):
    sys.exit(subprocess.run(command).returncode)
