"""Run a command that never outlives its owner: `leash.py [--while-locked FILE] COMMAND...`.

The command is killed when its owner ends in any way. The owner is the process at the other end of the standard input.
With `--while-locked`, the owners are all processes that hold a shared lock on FILE. The first line of output is the
command's process id.
"""

import fcntl
import os
import signal
import subprocess
import sys
import threading


def main(arguments: list[str]) -> int:
    """Run the command until it or its owner ends. Return its exit code."""
    locked = ""
    if arguments[0] == "--while-locked":
        locked, arguments = arguments[1], arguments[2:]
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches every process; the owner decides when the server ends
    process = subprocess.Popen(arguments, stdin=subprocess.DEVNULL)
    os.write(1, b"%d\n" % process.pid)
    threading.Thread(target=_end_with, args=(process,), daemon=True).start()
    try:
        if locked:
            with open(locked, "rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                process.kill()
                process.wait()  # before the lock is released: its next holder must find no dying server
        else:
            sys.stdin.buffer.read()
    finally:
        process.kill()
    return process.wait()


def _end_with(process: subprocess.Popen[bytes]) -> None:
    code = process.wait()
    os._exit(1 if code < 0 else code)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
