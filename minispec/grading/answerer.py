"""The process that runs submissions. It holds torch and no check: there is nothing in it to find.

The judge starts it once, and asks for a fork for every task; the fork confines itself, runs the submission's cells, and then
answers calls. Whatever it does, it can only answer: cases, expectations and points stay with the judge.
"""

from __future__ import annotations

import builtins
import contextlib
import importlib.abc
import importlib.machinery
import os
import signal
import socket
import sys
import types
from typing import Any

import torch

from minispec.grading.sandbox import confine
from minispec.grading.wire import Raised, borrowed, pack, receive, run, send, unpack

SILENT = {"check", "show", "hint", "status"}


def main() -> None:
    """Serve forks over the socket whose number is the only argument, until the judge hangs up."""
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the judge decides when all ends
    control = socket.socket(fileno=int(sys.argv[1]))
    while True:
        order, fds, _, _ = socket.recv_fds(control, 1, 1)
        if not order:
            return
        if order == b"f":
            pid = os.fork()
            if pid == 0:
                control.close()
                with contextlib.suppress(EOFError, OSError):
                    serve(socket.socket(fileno=fds[0]))
                os._exit(0)
            os.close(fds[0])
            send(control, pid)
        else:  # an answer is done with: end it, whatever it started, and say how it ended
            pid = receive(control)
            for kill in (os.killpg, os.kill):
                with contextlib.suppress(OSError):
                    kill(pid, signal.SIGKILL)
            send(control, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


def serve(channel: socket.socket) -> None:
    """One task of one submission: run the cells, then answer calls."""
    os.setsid()
    order = receive(channel)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)
    os.chdir(order["folder"])
    stand_in()
    confine(order["folder"], order["seconds"])
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    for i, cell in enumerate(order["cells"]):
        if i in order["skip"]:
            continue
        send(channel, {"cell": i})
        with contextlib.suppress(BaseException):  # a cell that fails costs what it defines, and nothing else
            exec(compile(cell, f"<cell {i + 1}>", "exec", dont_inherit=True), vars(main))
    function = vars(main).get(order["name"])
    there = "function" if callable(function) else "nothing" if function is None else "other"
    send(channel, {"there": there, "borrowed": borrowed(function) if callable(function) else None})

    def ask(number: int, method: str, *args: Any) -> Any:
        send(channel, {"ask": [number, method, pack(args)]})
        reply = receive(channel)
        if "raised" in reply:
            kind, message = reply["raised"]
            raise getattr(builtins, kind, RuntimeError)(message)
        return unpack(reply["value"])

    while True:
        args = unpack(receive(channel)["call"], ask)
        try:
            value, notes = run(function, args)  # pyright: ignore[reportArgumentType]
            reply = {"value": value, "notes": notes}
        except NotImplementedError:
            reply = {"todo": True}
        except KeyboardInterrupt:
            reply = {"raised": ["KeyboardInterrupt", "", 0]}
        except Raised as raised:
            reply = {"raised": raised.args}
        send(channel, reply)


class Inert:
    """What a submission finds in place of anything of minispec's."""

    __module__ = "minispec"  # by which `borrowed` knows it

    def __init__(self, name: str):
        self.name = name

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        if self.name not in SILENT:
            raise RuntimeError(f"{self.name} of minispec is not at hand while an answer is graded")


class StandIn(types.ModuleType):
    __path__: list[str] = []  # noqa: RUF012  (as a package has it)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Inert(name)


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Every module of minispec, to whoever imports it from now on, is a stand-in."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        ours = name.split(".")[0] == "minispec"
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if ours else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> StandIn:
        return StandIn(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def stand_in() -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "minispec"]:
        del sys.modules[name]
    sys.meta_path.insert(0, Finder())


if __name__ == "__main__":
    main()
