"""Test a service without a server: a handler by plain call with `a_saga`.

A fake of a resource is an instance of a subclass of the type that the resource gives (`class FakeBank(Bank)`).
"""

from saga.testing.plain import a_saga

__all__ = ["a_saga"]
