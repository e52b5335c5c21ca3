"""A program for the hosts of a lab: a listener that counts what it gets, and a caller that sends.

    talk.py listen ADDRESS              prints its port, then a line for every second or so: bytes so far, and when
    talk.py send ADDRESS PORT SECONDS   sends as much as it can; prints when it began, then how many bytes
    talk.py echo ADDRESS PORT           sends a byte and waits for it to come back, again and again; a line for each

Times are CLOCK_MONOTONIC, which all hosts of a lab share.
"""

from __future__ import annotations

import socket
import sys
import time


def listen(address: str) -> None:
    """Count what comes; send a byte back for every lone one."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.create_server((address, 0), family=family) as door:
        print(door.getsockname()[1], flush=True)
        while True:
            caller, _ = door.accept()
            buffer, total, shown = bytearray(1 << 20), 0, time.monotonic()
            try:
                while count := caller.recv_into(buffer):
                    total += count
                    if count == 1:
                        caller.send(buffer[:1])
                    if time.monotonic() - shown > 0.05:
                        shown = time.monotonic()
                        print(f"{total} {shown:.6f}", flush=True)
            except OSError as error:
                print(f"error {error}", flush=True)
            print(f"{total} {time.monotonic():.6f} end", flush=True)
            caller.close()


def send(address: str, port: int, seconds: float) -> None:
    """As fast as it goes."""
    with socket.create_connection((address, port), timeout=2.0) as line:
        line.settimeout(None)
        began, piece, total = time.monotonic(), bytes(1 << 16), 0
        print(f"{began:.6f}", flush=True)
        end = began + seconds
        while time.monotonic() < end:
            total += line.send(piece)
    print(total, flush=True)


def echo(address: str, port: int) -> None:
    """How long silence lasts, and whether anybody says that the line is dead."""
    with socket.create_connection((address, port), timeout=2.0) as line:
        line.settimeout(None)
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while True:
            line.send(b"x")
            if not line.recv(1):
                print("closed", flush=True)
                return
            print(f"{time.monotonic():.6f}", flush=True)
            time.sleep(0.005)


if __name__ == "__main__":
    what, address, *rest = sys.argv[1:]
    if what == "listen":
        listen(address)
    elif what == "send":
        send(address, int(rest[0]), float(rest[1]))
    else:
        echo(address, int(rest[0]))
