"""Programs in forks of one process that has imported the libraries and this package.

An interpreter and the libraries take a second to start, and hundreds of tests start one. Where a
test is about what a program does, and not about how it starts, `python` stands for
``[sys.executable]``. It is a command that hands its arguments, environment, directory, mask of
modes and standard streams to a server. The server forks, and the fork runs the program as Python
would: ``-c``, ``-m``, ``-`` or a file. The command ends as the program ends, by its exit code or by
its signal. It passes signals on, and where it is killed, so is the program.

What differs: the program has another process id than the command; limits, priorities and tracers
of the command do not reach it, and nor do variables that are read while modules are imported, but
for those of dask. A program that would import this package from elsewhere is refused.

Where a test is about how the package itself is imported, or about a copy of it,
``python(package=False)`` stands for Python with the libraries alone.

    python -I -S forks.py --ask SOCKET ARGUMENTS...
    python forks.py --serve SOCKET [--libraries]
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import socket
import sys

LIBRARIES = ("dask.array", "distributed", "numcodecs", "rich", "tensorstore", "zarr", "zarrs")
PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
SIZE = 8  # bytes of a number
SERVERS = []


def python(*, package=True):
    """The command that stands for Python, with this package imported or without."""
    return [sys.executable, "-I", "-S", __file__, "--ask", server(package)]


@functools.cache
def server(package):
    """Start a server; where it listens. It ends with this process."""
    import subprocess
    import tempfile

    path = os.path.join(tempfile.mkdtemp(prefix="forks-"), "socket")
    command = [sys.executable, __file__, "--serve", path, *["--libraries"] * (not package)]
    started = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    SERVERS.append(started)  # its input stays open for as long as this process lives
    assert started.stdout.readline() == b"ready\n"
    return path


def ask(path, arguments):
    """Have the server run a program, and end as it does."""
    import json

    mask = os.umask(0)
    os.umask(mask)
    request = json.dumps([arguments, dict(os.environ), os.getcwd(), mask]).encode()
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        socket.send_fds(connection, [len(request).to_bytes(SIZE, "big")], [0, 1, 2])
        connection.sendall(request)
        for number in PASSED_ON:
            signal.signal(number, lambda number, _: connection.send(bytes([number])))
        status = connection.recv(SIZE)
    if len(status) != SIZE:
        sys.exit("the server that runs programs for tests is gone")
    code = os.waitstatus_to_exitcode(int.from_bytes(status, "big"))
    if code < 0:
        with contextlib.suppress(OSError):  # SIGKILL has but one effect
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def asked(connection):
    """Arguments, environment, directory and mask of a program, and its streams; None where the
    command was killed amid it."""
    import json

    size, streams, _, _ = socket.recv_fds(connection, SIZE, 3)
    request, size = bytearray(), int.from_bytes(size, "big")
    while len(request) < size and (more := connection.recv(1 << 16)):
        request += more
    if request and len(request) == size:
        return json.loads(request), streams
    for stream in streams:
        os.close(stream)
    return None


def serve(path):
    """Fork for every program that is asked for; to the fork, gives the program."""
    import selectors

    woken, wakes = os.pipe()
    for end in (woken, wakes):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(path)
    listening.listen(64)
    commands, waiting = {}, selectors.DefaultSelector()
    for source in (listening, woken, 0):
        waiting.register(source, selectors.EVENT_READ)
    print("ready", flush=True)
    while True:
        for key, _ in waiting.select():
            if key.fileobj is listening:
                connection, _ = listening.accept()
                if (program := asked(connection)) is None:
                    connection.close()
                    continue
                if not (pid := os.fork()):
                    signal.set_wakeup_fd(-1)
                    for one in (listening, connection, waiting, *commands.values()):
                        one.close()
                    os.close(woken)
                    os.close(wakes)
                    return program
                for stream in program[1]:
                    os.close(stream)
                commands[pid] = connection
                waiting.register(connection, selectors.EVENT_READ, pid)
            elif key.fileobj == woken:
                os.read(woken, 1 << 12)
                for pid in [*commands]:
                    ended, status = os.waitpid(pid, os.WNOHANG)
                    if ended:
                        with (
                            commands.pop(pid) as connection,
                            contextlib.suppress(BrokenPipeError, KeyError),
                        ):
                            connection.sendall(status.to_bytes(SIZE, "big"))
                            waiting.unregister(connection)
            elif key.fileobj == 0:
                for pid in commands:
                    os.kill(pid, signal.SIGKILL)
                os.remove(path)
                os.rmdir(os.path.dirname(path))
                os._exit(0)
            elif key.data in commands:  # else it has ended in this very round
                numbers = key.fileobj.recv(1 << 6)
                for number in numbers or [signal.SIGKILL]:
                    os.kill(key.data, number)
                if not numbers:
                    waiting.unregister(key.fileobj)


def load(package):
    """Import what programs use. No thread may run where there is a fork."""
    import gc
    import importlib
    import threading

    for name in LIBRARIES:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    if package:
        shardwrite = importlib.import_module("shardwrite")
        for name in shardwrite.__all__:
            getattr(shardwrite, name)
        main = importlib.import_module("shardwrite.cli").main
        for name in main.commands:
            main.get_command(None, name)
    if threading.active_count() > 1:
        sys.exit(f"threads run: {threading.enumerate()}")
    gc.collect()
    gc.freeze()


def become(arguments, environment, directory, mask, streams):
    """Have what the command has."""
    import importlib.machinery

    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    sys.stdin = sys.__stdin__ = open(0, closefd=False)  # noqa: SIM115
    sys.stdout = sys.__stdout__ = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = sys.__stderr__ = open(2, "w", 1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    before, dasks = paths(), of_dask(os.environ)
    os.environ.clear()
    os.environ.update(environment)
    sys.dont_write_bytecode = bool(os.environ.get("PYTHONDONTWRITEBYTECODE"))
    if of_dask(os.environ) != dasks:
        sys.modules["dask"].config.refresh()
    os.umask(mask)
    os.chdir(directory)
    first, argument = arguments[0], arguments[1:2]
    here = {"-m": directory, "-c": "", "-": ""}
    place = here[first] if first in here else os.path.dirname(os.path.realpath(first))
    others = [one for one in sys.path[1:] if one not in before]  # the first is this file's
    sys.path[:] = [place, *paths(), *others]
    if "shardwrite" in sys.modules:
        spec = importlib.machinery.PathFinder.find_spec("shardwrite", sys.path)
        ours = sys.modules["shardwrite"].__file__
        if spec is None or not spec.origin or not os.path.samefile(spec.origin, ours):
            sys.exit(f"another shardwrite would be imported ({spec}): give package=False")
    sys.argv[:] = [first, *arguments[1 + len(argument) * (first in ("-c", "-m")) :]]
    return argument


def of_dask(environment):
    return {name: value for name, value in environment.items() if name.startswith("DASK_")}


def paths():
    return [one for one in os.environ.get("PYTHONPATH", "").split(os.pathsep) if one]


def run(argument):
    """Run the program that the arguments tell of, as Python does."""
    import runpy
    import types

    first = sys.argv[0]
    if first == "-m":
        runpy.run_module(argument[0], run_name="__main__", alter_sys=True)
        return
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    if first == "-c":
        (text,) = argument
    elif first == "-":
        text = sys.stdin.read()
    else:
        main.__file__ = first
        with open(first, "rb") as file:
            text = file.read()
    exec(compile(text, {"-c": "<string>", "-": "<stdin>"}.get(first, first), "exec"), vars(main))


if __name__ == "__main__":
    what, where, *more = sys.argv[1:]
    if what == "--ask":
        ask(where, more)
    load(package="--libraries" not in more)
    program, streams = serve(where)
    run(become(*program, streams))
