"""What passes between a check and an answer: plain data, copied, and nothing else.

    Local(function)(torch.ones(2), reader)                # as the check calls it, in the notebook and in the sandbox alike

An answer gets copies of its arguments, so that it cannot change what the check compares with; if it changes them, that
is noted. Objects stay with the check: the answer sees a `Stub`, whose methods ask the check. What comes back is numbers in
lists. The sandbox puts a socket between the two; in a notebook the same steps run in one process, so the same answer is
judged alike in both.
"""

from __future__ import annotations

import contextlib
import dis
import json
import os
import re
import signal
import struct
import threading
import types
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

LARGEST = 2**23  # bytes of one message
CPU_S = 10  # seconds of processor time for loading a submission and checking one task
WALL_S = 60  # seconds by the clock, for answers that wait instead of computing
NUMBER = (type(None), bool, int, float, str)


class Raised(Exception):
    """The answer raised an exception: its type, the first line of its message, and the line of the function (0: unknown)."""

    def __init__(self, kind: str, message: str = "", line: int = 0):
        super().__init__(kind, message, line)
        self.kind, self.message, self.line = kind, message, line


class Stopped(Exception):
    """The answer's process came to an end, or was ended: a reason in words."""


def plain(x: Any) -> Any:
    """Tensors, arrays and tuples as lists of numbers. Raises TypeError for what is neither data nor a sequence of it."""
    if type(x) in NUMBER:
        return x
    if isinstance(x, list | tuple):
        return [plain(y) for y in x]
    if type(x) is dict:
        return {str(name): plain(y) for name, y in x.items()}
    if isinstance(x, torch.Tensor) or type(x).__module__ == "numpy":
        return x.tolist()
    raise TypeError(f"the answer returns a {type(x).__name__}, not numbers, lists or tensors")


def pack(x: Any, objects: list | None = None) -> Any:
    """`x` as JSON holds it, with tensors marked; other objects are put into `objects`, and named by their place there."""
    if isinstance(x, torch.Tensor):
        return {"tensor": x.tolist(), "dtype": str(x.dtype).removeprefix("torch."), "shape": list(x.shape)}
    if isinstance(x, list | tuple):
        return [pack(y, objects) for y in x]
    if type(x) in NUMBER:
        return x
    if objects is None:
        return plain(x)
    objects.append(x)
    return {"object": len(objects) - 1, "methods": [m for m in dir(type(x)) if m == "__call__" or m[0] != "_"]}


def unpack(x: Any, ask: Callable[..., Any] | None = None) -> Any:
    """What `pack` packed; an object becomes a stub that calls `ask(number, method, arguments)`."""
    if isinstance(x, list):
        return [unpack(y, ask) for y in x]
    if not isinstance(x, dict):
        return x
    if "object" in x:
        return Stub({name: partial(ask, x["object"], name) for name in x["methods"]} if ask else {})
    return torch.tensor(x["tensor"], dtype=getattr(torch, x["dtype"])).view(x["shape"])


class Stub:
    """Stands for an object of the check; its methods are answered there."""

    def __init__(self, methods: dict[str, Callable[..., Any]]):
        vars(self).update(methods)

    def __call__(self, *args: Any) -> Any:
        return vars(self)["__call__"](*args)


def serve(objects: list, number: int, method: str, args: Any) -> Any:
    """The check's side of a stub: call the method, and pack what it returns."""
    found = objects[number]
    if method != "__call__" and (method[0] == "_" or not hasattr(type(found), method)):
        raise AttributeError(f"there is no {method!r} here")
    return pack(getattr(found, method)(*unpack(args)))


class Local:
    """An answer in this process, called as the sandbox calls it. `notes`: what `run` has noted, a call after the other."""

    def __init__(self, function: Callable[..., Any]):
        self.function, self.notes, self.left = function, [], float(CPU_S)

    def __call__(self, *args: Any) -> Any:
        objects: list = []
        ask = lambda number, method, *given: unpack(serve(objects, number, method, pack(given)))
        given = unpack(pack(args, objects), ask)
        with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere), self.limited():
            value, notes = run(self.function, given)
        self.notes.append(notes)
        return value

    @contextlib.contextmanager
    def limited(self) -> Iterator[None]:
        """Raise Stopped where all calls together take more than CPU_S seconds, if the platform has such a clock."""

        def stop(*_: Any) -> None:
            raise Stopped(too_long())

        if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "ITIMER_PROF"):
            yield
            return
        before = signal.signal(signal.SIGPROF, stop)
        signal.setitimer(signal.ITIMER_PROF, max(0.01, self.left), 1)  # and again each second, if the answer catches it
        try:
            yield
        finally:
            self.left = signal.setitimer(signal.ITIMER_PROF, 0)[0]
            signal.signal(signal.SIGPROF, before)


def too_long() -> str:
    return f"does a loop never end? There was no answer in {CPU_S} seconds of computing, or {WALL_S} by the clock"


def run(function: Callable[..., Any], args: list) -> tuple[Any, dict[str, Any]]:
    """What the answer returns, as plain data, and notes: the name of an argument that it `changed`, and the `type` of what
    it returned (a tensor's: its dtype). Raises Raised for whatever it raises, NotImplementedError as it is."""
    before = [repr(pack(x, [])) for x in args]
    try:
        found = function(*args)
        kind = str(found.dtype) if isinstance(found, torch.Tensor) else type(found).__name__
        code = getattr(function, "__code__", None)
        names = code.co_varnames[: code.co_argcount] if code else ()
        changed = [i for i, x in enumerate(args) if repr(pack(x, [])) != before[i]]
        name = [*names, *["args"] * len(args)][changed[0]] if changed else None
        return plain(found), {"changed": name, "type": kind}
    except (NotImplementedError, KeyboardInterrupt, Stopped):
        raise
    except BaseException as error:
        raise Raised(*describe(error, function)) from None


def describe(error: BaseException, function: Callable[..., Any] | None = None) -> tuple[str, str, int]:
    """Type, first line of the message, line within the function: the same words wherever the error happens."""
    line, trace, code = 0, error.__traceback__, getattr(function, "__code__", None)
    while trace:
        if code and trace.tb_frame.f_code is code:
            line = trace.tb_lineno - code.co_firstlineno + 1
        trace = trace.tb_next
    kind = type(error).__name__
    if isinstance(error, MemoryError) or "can't allocate memory" in str(error):
        return "MemoryError", "more memory than an answer may take", line
    message = re.sub(r"0x[0-9a-fA-F]+", "0x..", next(iter(str(error).splitlines()), ""))
    return kind, message[:200], line


def borrowed(function: Callable[..., Any]) -> str | None:
    """What of minispec the function, or a function of the same notebook that it uses, calls; None if nothing."""
    waiting, seen = [getattr(function, "__code__", None)], set()
    names = getattr(function, "__globals__", {})
    while waiting:
        code = waiting.pop()
        if not isinstance(code, types.CodeType) or code in seen:
            continue
        seen.add(code)
        waiting += code.co_consts
        for step in dis.get_instructions(code):
            if step.opname not in ("LOAD_GLOBAL", "LOAD_NAME", "IMPORT_NAME"):
                continue
            name = str(step.argval)
            found = names.get(name)
            home = found.__name__ if isinstance(found, types.ModuleType) else getattr(found, "__module__", None)
            if name.split(".")[0] == "minispec" or str(home).split(".")[0] == "minispec":
                return name
            if isinstance(found, types.FunctionType):
                waiting.append(found.__code__)
    return None


def send(socket: Any, message: Any) -> None:
    data = json.dumps(message).encode()
    socket.sendall(struct.pack("!I", len(data)) + data)


def receive(socket: Any) -> Any:
    """The next message. Raises EOFError where the other side has gone, ValueError for what is no message."""
    (size,) = struct.unpack("!I", exactly(socket, 4))
    if size > LARGEST:
        raise ValueError("a message is too long")
    return json.loads(exactly(socket, size))


def exactly(socket: Any, size: int) -> bytes:
    parts = []
    while size:
        part = socket.recv(min(size, 2**20))
        if not part:
            raise EOFError
        parts.append(part)
        size -= len(part)
    return b"".join(parts)
