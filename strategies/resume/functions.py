"""Tells functions apart that have no name of their own: lambdas, and those made in functions."""

import dis
from types import BuiltinFunctionType, CodeType, FunctionType
from typing import Any

import numpy as np

_PLAIN = (type(None), type(...), bool, int, float, complex, str, bytes)


def fingerprint(function: Any) -> str:
    """Return what a function is made of, if its name does not say it; else nothing."""
    # It is the same in each process of one version of Python: bytecode, constants, names,
    # defaults and what a closure holds of plain values. Of all else it has the name of the type
    # only.
    return _of(function, []) if _is_nameless(function) else ""


def _is_nameless(value: Any) -> bool:
    # The name of the code, for a decorator gives its function the name of another.
    return isinstance(value, FunctionType) and any(
        part in value.__code__.co_qualname for part in ("<lambda>", "<locals>")
    )


def _of(value: Any, above: list[FunctionType]) -> str:
    if type(value) in _PLAIN:
        return repr(value)
    if isinstance(value, (np.number, np.bool_, np.str_)):
        return f"{value.dtype} {value.item()!r}"
    if type(value) is slice:
        value = (value.start, value.stop, value.step)
    elif isinstance(value, CodeType):
        arguments = (value.co_argcount, value.co_posonlyargcount, value.co_kwonlyargcount)
        names = (value.co_names, value.co_varnames)
        made = (value.co_code, value.co_exceptiontable, value.co_consts)
        value = (*made, *names, *arguments, value.co_flags)
    elif _is_nameless(value) and not any(value is other for other in above):  # it may call itself
        above = [*above, value]
        defaults = (value.__defaults__, *sorted((value.__kwdefaults__ or {}).items()))
        value = (value.__code__, defaults, *_closure(value))
    if type(value) in (tuple, frozenset):
        parts = [_of(part, above) for part in value]
        return f"{type(value).__name__} {parts if type(value) is tuple else sorted(parts)}"
    named = isinstance(value, (type, FunctionType, BuiltinFunctionType))
    return str((value if named else type(value)).__qualname__)


def _closure(function: FunctionType) -> list[Any]:
    """Return what a closure holds, but for what the function counts up in it."""
    code = function.__code__
    changed = {step.argval for step in dis.get_instructions(code) if step.opname == "STORE_DEREF"}
    held = []
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        try:
            held.append(None if name in changed else cell.cell_contents)
        except ValueError:  # nothing yet
            held.append(None)
    return held
