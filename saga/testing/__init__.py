"""Test a service without a server: a handler by plain call with `a_saga`, a service on its real runtime with `trial`.

A fake of a resource is an instance of a subclass of the type that the resource gives (`class FakeBank(Bank)`).
"""

from saga.testing.plain import a_saga
from saga.testing.trial import Trial, trial

__all__ = ["Trial", "a_saga", "trial"]
