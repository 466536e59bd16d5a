"""Runs a command that never outlives its owner: `leash.py [--while-locked FILE] COMMAND...`

The command is killed when its owner ends in any way. The owner is whoever holds the other end of our standard input;
or, with `--while-locked`, all processes that hold a shared lock on FILE. Prints the command's process id at first.
"""

import fcntl
import os
import signal
import subprocess
import sys
import threading


def main(arguments: list[str]) -> int:
    locked = ""
    if arguments[0] == "--while-locked":
        locked, arguments = arguments[1], arguments[2:]
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to all; the owner says when it is over
    process = subprocess.Popen(arguments, stdin=subprocess.DEVNULL)
    os.write(1, b"%d\n" % process.pid)
    threading.Thread(target=_end_with, args=(process,), daemon=True).start()
    try:
        if locked:
            with open(locked, "rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                process.kill()
                process.wait()  # before the lock goes: who has it next finds no server that is about to end
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
