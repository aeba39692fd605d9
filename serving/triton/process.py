"""A child process that never outlives its parent, and takes its own children with it."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

_SIGNAL_ON_PARENT_DEATH = 1
_EXEC = f"""
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl({_SIGNAL_ON_PARENT_DEATH}, signal.SIGTERM)
if os.getppid() != int(sys.argv[1]):
    sys.exit("the parent process is gone")
os.execv(sys.argv[2], sys.argv[2:])
"""


class GroupProcess:
    """A program in a process group of its own. The system ends it with SIGTERM when this process dies, however it dies.

    Args:
        command: program and arguments; the program is an absolute path.
        environment: the child's whole environment.
        log: a file for its output; None lets it write where this process does.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: Path | None) -> None:
        self._started = threading.Event()
        self._failure: OSError | None = None
        self._arguments = ([sys.executable, "-I", "-S", "-c", _EXEC, str(os.getpid()), *command], environment, log)
        # The kernel ties that signal to the thread that starts the child, so one thread stays for as long as the child does.
        threading.Thread(target=self._keep, name="child-keeper", daemon=True).start()
        self._started.wait()
        if self._failure is not None:
            raise self._failure

    @property
    def pid(self) -> int:
        """The program's, and of its group."""
        return self._process.pid

    def poll(self) -> int | None:
        """The exit code (negative: a signal), or None while it runs."""
        return self._process.poll()

    def stop(self, timeout_s: float) -> int:
        """End the whole group: SIGTERM, and SIGKILL for whatever is left after `timeout_s`. The program's exit code."""
        with suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout_s)
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        return self._process.wait()

    def _keep(self) -> None:
        arguments, environment, log = self._arguments
        try:
            output = None if log is None else log.open("wb")
            try:
                self._process = subprocess.Popen(
                    arguments, env=dict(environment), stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
                )
            finally:
                if output is not None:
                    output.close()
        except OSError as error:
            self._failure = error
            return
        finally:
            self._started.set()
        self._process.wait()
