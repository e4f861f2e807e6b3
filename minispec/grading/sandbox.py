"""The walls around a submission's process: time, memory, files, network, other processes.

    confine(folder, 10)                                   # in the child, once; there is no way back

Three layers, the first two where the platform has them. Kernel: resource limits, and on Linux a network namespace without a
network and Landlock, which lets the process write in `folder` alone and read only what Python itself needs. Python: an audit
hook that refuses the same things by name, and with them the checks' own files. Against someone who is determined the hook
alone is no wall; see TEACHING.md.
"""

from __future__ import annotations

import ctypes
import os
import resource
import struct
import sys
from typing import Any

MEMORY = 2 * 2**30  # bytes beyond what Python and torch take
FILE = 16 * 2**20  # bytes of any file
PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
FORBIDDEN = ("socket.", "subprocess.", "os.system", "os.exec", "os.posix_spawn", "os.fork", "os.kill", "ctypes.dlopen")
CHANGES = ("os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.link", "os.symlink", "os.truncate", "os.chmod", "os.chown")
READ, WRITE = (
    0b1101,
    0b111_1111_1111_0010,
)  # Landlock's bits: execute, read file and folder; all that changes a file or folder


def confine(folder: str, seconds: int) -> None:
    """`seconds` of processor time, and then the process ends."""
    limit(seconds)
    unplug()
    landlock(folder)
    sys.addaudithook(guard(os.path.realpath(folder)))


def limit(seconds: int) -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE, FILE))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":  # elsewhere the limit on addresses is not kept
        with open("/proc/self/statm") as file:
            taken = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (taken + MEMORY, taken + MEMORY))


def unplug() -> bool:
    """A network namespace of its own, with nothing in it; False where the system does not let us."""
    if sys.platform != "linux":
        return False
    libc = ctypes.CDLL(None)
    user, network = 0x10000000, 0x40000000
    return libc.unshare(network) == 0 or libc.unshare(user | network) == 0


def landlock(folder: str) -> bool:
    """Write below `folder` alone, read there and where Python lives, signal nobody; False if there is no Landlock."""
    if sys.platform != "linux":
        return False
    libc = ctypes.CDLL(None)
    create, add, restrict = 444, 445, 446  # system calls, the same numbers on every processor
    version = libc.syscall(create, None, 0, 1)
    if version < 1:
        return False
    writes = WRITE & (2**13 - 1 if version < 2 else 2**14 - 1 if version < 3 else 2**15 - 1)  # newer rights, newer kernels
    fields = [READ | writes, *([0b11] if version >= 4 else []), *([0b11] if version >= 6 else [])]  # files, TCP, signals
    wanted = struct.pack(f"{len(fields)}Q", *fields)
    rules = libc.syscall(create, wanted, len(wanted), 0)
    torch = os.path.dirname(os.path.dirname(str(sys.modules["torch"].__file__)))
    python = (sys.prefix, sys.base_prefix, torch)
    allowed = dict.fromkeys(("/usr", "/lib", "/lib64", "/etc", "/proc", "/sys", *python), READ)
    for path, rights in {**allowed, "/dev": READ | 0b10, folder: READ | writes}.items():
        if os.path.isdir(path):
            place = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            libc.syscall(add, rules, 1, struct.pack("<Qi", rights, place), 0)
            os.close(place)
    no_new_privileges = 38
    libc.prctl(no_new_privileges, 1, 0, 0, 0)
    done = libc.syscall(restrict, rules, 0) == 0
    os.close(rules)
    return done


def guard(folder: str) -> Any:
    """An audit hook that refuses by name what an answer has no need of."""

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if event.startswith(FORBIDDEN):
            raise PermissionError(f"an answer may not do this while it is graded: {event}")
        if event == "open" and isinstance(args[0], str | bytes):
            path = os.path.realpath(os.fsdecode(args[0]))
            mode, flags = args[1], args[2] if isinstance(args[2], int) else 0
            writes = (mode and set(str(mode)) & set("wxa+")) or flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC)
            if inside(path, PACKAGE):
                raise PermissionError("an answer may not read minispec's files while it is graded")
            if writes and path != os.devnull and not inside(path, folder):
                raise PermissionError("an answer may not write outside its own folder while it is graded")
        elif event.startswith(CHANGES) and not all(
            inside(os.path.realpath(os.fsdecode(x)), folder) for x in args if isinstance(x, str | bytes)
        ):
            raise PermissionError("an answer may not change files outside its own folder while it is graded")

    return hook


def inside(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder + os.sep)
