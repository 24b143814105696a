"""Small federations for the tests: ordinary Flower apps, each with the one line added."""

from collections.abc import Callable

from flwr.app import Context, Message

Mod = Callable[[Message, Context, Callable[[Message, Context], Message]], Message]
