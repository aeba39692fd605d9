"""Signals ask; they do not kill."""

import os
import signal

import pytest

from emberline.train.job_signals import stop_on_signals


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_is_noted(number: signal.Signals, status: int) -> None:
    before = signal.getsignal(number)
    with stop_on_signals() as stop:
        assert (bool(stop), stop.exit_status) == (False, 0)
        os.kill(os.getpid(), number)
        assert bool(stop)
        assert (stop.signal, stop.exit_status) == (number, status)
    assert signal.getsignal(number) is before


def test_a_second_interrupt_ends_at_once() -> None:
    with stop_on_signals() as stop:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.signal is signal.SIGTERM
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
