"""server.py HOST PORT NONCE: a stand-in for an inference server; ``GET /health`` answers with the nonce."""

from __future__ import annotations

import socket
import sys

host, port, nonce = sys.argv[1], int(sys.argv[2]), sys.argv[3]
listener = socket.create_server((host, port))
print(f"listening on {host}:{port}", flush=True)
while True:
    connection, _ = listener.accept()
    with connection:
        connection.recv(4096)
        head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(nonce)}\r\nConnection: close\r\n\r\n"
        connection.sendall((head + nonce).encode())
