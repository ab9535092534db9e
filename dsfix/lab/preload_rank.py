"""``preload_rank.py SOCKET MODULE ARGUMENT...``: has the server fork a rank that calls `main` of MODULE.

The rank takes over this process's environment, directory, standard output and error, and ends with it; this process
exits with the rank's status. Standard library only.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys


def main() -> int:
    request = {"argv": sys.argv[2:], "cwd": os.getcwd(), "environment": dict(os.environ)}
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(sys.argv[1])
        socket.send_fds(server, [b"\n"], [1, 2])
        server.sendall(json.dumps(request).encode() + b"\n")
        answer = server.makefile().readline()
    if not answer:
        print("the process that preloads torch has ended", file=sys.stderr)
        return 1
    returncode = int(answer)
    if returncode < 0:
        os.kill(os.getpid(), -returncode)
        signal.pause()
    return returncode


if __name__ == "__main__":
    sys.exit(main())
