"""A process that ends with all that it started, and that may leave the network, as far as the system offers both.

Imported before numpy and torch: a process that has threads can leave nothing.
"""

import ctypes
import fcntl
import os
import signal
import socket
import struct
from contextlib import suppress
from pathlib import Path
from threading import Thread

import psutil

NEW_USER, NEW_NETWORK = 0x10000000, 0x40000000
"""Of ``unshare``."""
SUBREAPER = 36
"""Of ``prctl``: the parent of descendants whose own parent has ended, and so of detached ones."""
SET_FLAGS, UP = 0x8914, 0x41
"""``SIOCSIFFLAGS``, and the flags of an interface that is up and running."""


def leave_network() -> bool:
    """Move this process and those that it starts into a network without a connection, with a loopback interface of its own.

    Returns:
        Whether the system did it: Linux does, unless a container or its administrator forbids it. Sockets in the file system can
        still be reached, and root can return.
    """
    user, group = os.geteuid(), os.getegid()
    try:
        unshare = ctypes.CDLL(None).unshare
        if unshare(NEW_NETWORK):  # which root alone may leave without a space of users of its own
            if unshare(NEW_USER | NEW_NETWORK):
                return False
            maps = {"setgroups": "deny", "uid_map": f"{user} {user} 1", "gid_map": f"{group} {group} 1"}
            for name, text in maps.items():
                Path("/proc/self", name).write_text(text, encoding="ascii")
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
            fcntl.ioctl(any_socket, SET_FLAGS, struct.pack("16sh14x", b"lo", UP))
    except (AttributeError, OSError):
        return False
    return True


def supervise() -> None:
    """Return in a child of this process, whose input is empty. This process waits, and ends as the child does.

    Before that it ends all that the child started: on Linux detached processes, too, unless the code ends this process first. Where
    the input of this process is closed, it ends the child.
    """
    with suppress(AttributeError):  # of other systems
        ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)
    child = os.fork()
    if not child:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        return
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def end_with_parent() -> None:
        os.read(0, 1)
        os.kill(child, signal.SIGKILL)

    Thread(target=end_with_parent, daemon=True).start()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    with suppress(ChildProcessError):  # none is left
        while True:
            for orphan in psutil.Process().children(recursive=True):
                with suppress(psutil.NoSuchProcess):
                    orphan.kill()
            os.waitpid(-1, 0)  # one of them; what it had started comes to this process
    if code < 0:
        with suppress(OSError):  # of signals that nobody can handle
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)
