"""The combinations that come with the library: each is a file here and a name below."""

from dataclasses import fields
from difflib import get_close_matches

from ..combination import Combination
from .mean import Mean
from .sketched_mean import SketchedFit
from .surrogates import MIFA, Surrogates

__all__ = ["MIFA", "Mean", "SketchedFit", "Surrogates", "parse_combination"]

COMBINATIONS: dict[str, type[Combination]] = {
    "mean": Mean,
    "surrogates": Surrogates,
    "fedstale": Surrogates,  # its authors' name
    "fedvarp": Surrogates,  # with the β that it has by default, and no other
    "mifa": MIFA,
    "sketched-mean": SketchedFit,
}
"""The combinations by their names in the settings."""


def parse_combination(given: object) -> Combination:
    """Return a combination, perhaps from a text such as ``"sketched-mean:store=50"``.

    After the name and a colon, parameters are separated by commas, each ``name=value``; of the
    first, the value is enough: ``"surrogates:0.8"``. A ValueError names those that exist.
    """
    if isinstance(given, Combination):
        return given
    if isinstance(given, type) and issubclass(given, Combination):
        raise TypeError(f"combine is the class {given.__name__}: make one of it, with ()")
    if not isinstance(given, str):
        raise TypeError(f"combine is {given!r}, but must be a text or a combination: {_known()}")
    name, colon, text = given.partition(":")
    kind = COMBINATIONS.get(name)
    if kind is None:
        near = get_close_matches(name.lower(), COMBINATIONS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else _known()
        raise ValueError(f"combine is {given!r}, but there is no {name!r}: {hint}")
    known = [each for each in fields(kind) if each.init]  # type: ignore[arg-type]
    names = [each.name for each in sorted(known, key=lambda each: bool(each.kw_only))]
    arguments: dict[str, object] = {}
    for place, part in enumerate(text.split(",") if colon else []):
        key, equals, value = (each.strip() for each in part.partition("="))
        if not equals and place == 0 and names and key not in names:
            key, value = names[0], key
        if key in names and not value:
            raise ValueError(f"combine is {given!r}, but {key} has no value: use {key}=VALUE")
        if key not in names:
            there = f"there are {', '.join(names)}" if names else "it has none"
            raise ValueError(
                f"combine is {given!r}, but {name!r} has no parameter {part!r}: {there}"
            )
        if key in arguments:
            raise ValueError(f"combine is {given!r}, but {key} is given twice: leave one out")
        arguments[key] = _value(value)
    if name == "fedvarp" and arguments.get("beta", 1) != 1:
        beta = arguments["beta"]
        raise ValueError(
            f"combine is {given!r}, but FedVARP's beta is 1: for another, from 0 to 1, use "
            f"'surrogates:BETA', not 'fedvarp:{beta}'"
        )
    try:
        return kind(**arguments)
    except (TypeError, ValueError) as error:
        raise ValueError(f"combine is {given!r}: {error}") from None


def _known() -> str:
    return f"there are {', '.join(map(repr, COMBINATIONS))}"


def _value(text: str) -> int | float | str | None:
    """Return a number, or None, if a text is one."""
    if text == "None":
        return None
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text
