# SPDX-License-Identifier: Apache-2.0
"""What a command does if it cannot write its output, or lacks files or room.

    def main() -> None:
        with command("p4reduce-lab"):
            ...

A command whose standard output cannot be written has nothing left to do. Its work is unwound: its
children end, its directories go. It exits with 141 if a pipe's reader has gone, as a shell shows a
process that SIGPIPE ended. Otherwise it exits with 1 and a line on standard error. This holds for
output of any thread. Errors of standard error itself are ignored: a switch continues when the disk
with its log is full.

A command that lacks descriptors, or room to write a file, exits with 1 and a line, too.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import select
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import TYPE_CHECKING, NoReturn, TextIO

from p4reduce_common.threads import new_thread

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_READER_GONE = 128 + signal.SIGPIPE
_LACKING = frozenset(
    {
        errno.EMFILE,  # descriptors
        errno.ENFILE,
        errno.ENOSPC,  # room to write
        errno.EDQUOT,
        errno.EROFS,
    }
)


@contextlib.contextmanager
def command(name: str) -> Iterator[None]:
    """Run a command of this name by the rules above. Call it in the main thread.

    gRPC's own log, which repeats at length what our errors say, is off unless GRPC_VERBOSITY is
    set.

    Raises:
        SystemExit: standard output could not be written; the code is 141 or 1. Or descriptors or
            room to write were lacking: 1.
    """
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    output = _GuardedOutput(_descriptor(sys.stdout))
    before = sys.stdout, sys.stderr, signal.getsignal(signal.SIGPIPE)
    sys.stderr = _text(_Lossy(_descriptor(sys.stderr), "w", closefd=False), sys.stderr)
    sys.stdout = _text(output, sys.stdout)
    _current.append(output)
    # Python ignores this signal; here another thread notifies the main one by it.
    signal.signal(signal.SIGPIPE, output.on_signal)
    try:
        try:
            yield
        except OSError as error:
            if error.errno not in _LACKING:
                raise
            print(f"{name}: {_lack(error)}", file=sys.stderr)
            sys.exit(1)
        finally:
            with contextlib.suppress(SystemExit):
                sys.stdout.flush()
    except SystemExit:
        if output.failure is None:
            raise
    finally:
        _current.remove(output)
        errors = sys.stderr
        sys.stdout, sys.stderr = before[:2]
        signal.signal(signal.SIGPIPE, before[2])
    if output.failure is not None:
        if output.failure.errno != errno.EPIPE:
            text = os.strerror(output.failure.errno or 0)
            print(f"{name}: cannot write to standard output: {text}", file=errors)
        raise _exit(output.failure)


def _lack(error: OSError) -> str:
    if error.errno == errno.EMFILE:
        return f"{error.strerror}: `ulimit -n` has this process's limit"
    return f"{error.strerror}: {error.filename}" if error.filename else str(error.strerror)


@contextlib.contextmanager
def ends_with_reader() -> Iterator[None]:
    """End the command as soon as its output's reader is gone, not at the next write.

    It is for commands that may be silent for hours. Outside of `command` it has no effect.
    """
    if not _current:
        yield
        return
    done, finish = os.pipe()
    watcher = new_thread(_current[-1].watch, "output", args=(done,))
    watcher.start()
    try:
        yield
    finally:
        os.close(finish)
        watcher.join()
        os.close(done)


class _GuardedOutput(io.FileIO):
    """Standard output that fails once; what is written later is dropped, so that cleaning up
    and Python's own end do not fail again."""

    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor, "w", closefd=False)
        self.failure: OSError | None = None
        self._raised = False

    def write(self, data: ReadableBuffer, /) -> int:
        if self.failure is not None:
            return memoryview(data).nbytes
        try:
            while (written := super().write(data)) is None:
                _wait_writable(self.fileno())  # somebody made it non-blocking
        except OSError as error:
            self._fail(error)
        return written

    def watch(self, done: int) -> None:
        """Wait until the reader is gone, or the other end of the pipe `done` is closed."""
        poll = select.poll()
        poll.register(done, 0)
        with contextlib.suppress(OSError):
            poll.register(self.fileno(), 0)
        ready = {descriptor for descriptor, _ in poll.poll()}
        if done not in ready and self.failure is None:
            self._fail(OSError(errno.EPIPE, os.strerror(errno.EPIPE)))

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        """In the main thread; sockets whose peer is gone cause the same signal."""
        if self.failure is not None and not self._raised:
            self._raised = True
            raise _exit(self.failure)

    def _fail(self, error: OSError) -> NoReturn:
        self.failure = error
        main = threading.main_thread()
        if threading.current_thread() is main:
            self._raised = True
        elif main.ident is not None:
            signal.pthread_kill(main.ident, signal.SIGPIPE)
        raise _exit(error)


def _exit(error: OSError) -> SystemExit:
    # Not a class of its own: nobody takes this for an error of what they just did, and a thread
    # other than the main one ends by exactly this without a traceback.
    return SystemExit(_READER_GONE if error.errno == errno.EPIPE else 1)


class _Lossy(io.FileIO):
    """Standard error: what cannot be written is lost."""

    def write(self, data: ReadableBuffer, /) -> int:
        with contextlib.suppress(OSError):
            super().write(data)
        return memoryview(data).nbytes


_current: list[_GuardedOutput] = []


def _descriptor(stream: TextIO | None) -> int:
    """The stream's; where the shell has closed it, one that nothing can be written to, so that
    no file that is opened later gets its number and our output."""
    if stream is None:
        return os.open(os.devnull, os.O_RDONLY)
    return stream.fileno()


def _text(raw: io.FileIO, like: TextIO | None) -> io.TextIOWrapper:
    if not isinstance(like, io.TextIOWrapper):
        return io.TextIOWrapper(io.BufferedWriter(raw), "utf-8", "backslashreplace")
    like.flush()
    return io.TextIOWrapper(
        io.BufferedWriter(raw),
        like.encoding,
        like.errors,
        # With PYTHONUNBUFFERED Python would write at once; here it waits for the end of a line.
        line_buffering=like.line_buffering or like.write_through,
    )


def _wait_writable(descriptor: int) -> None:
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    poll.poll()
