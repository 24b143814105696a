"""Which columns of a table are inputs, labels and clients, and what arrays they make."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..how_far import tell
from .examples import Data, every_nth_of_each_class, last_tenth_of_each

_TESTS = ("test", "validation", "valid", "val")
_LABELS = ("label", "labels", "target", "y")  # columns of which the type does not say it
_GREY = ("1", "L", "LA")
_LONGEST = 256  # characters of a text that are read
_WINDOW = 80  # characters before the one that is to be guessed, as in LEAF
_CODES = 256  # of characters; 0 is for none, and for any beyond the 255 most frequent
_AT_ONCE = 10_000  # texts

Labels = NDArray[np.int64]


class Reading(NamedTuple):
    """How a data set of the hub is read; a column that is empty is found by its type."""

    input: str = ""
    label: str = ""
    client: str = ""
    image_size: int = 0
    """Height and width that images are resized to; 0: all have one size, and keep it."""


def read_columns(parts: Mapping[str, Any], reading: Reading, title: str) -> Data:
    """Make arrays of the parts of a data set, of which a tenth is held back if none is a test.

    Of a data set that names clients that is the last tenth of each client's examples, in the order
    of the file: windows of one text overlap, and none of those held back begins before all others.
    """
    train = parts["train"] if "train" in parts else next(iter(parts.values()))
    if "train" not in parts and len(parts) > 1:
        raise ValueError(f"there is no part 'train', only {', '.join(parts)}")
    reading = _found(train.features, reading)
    tables = [train, *_test_part(parts, reading)]
    for name, part in parts.items():
        if not len(part) and any(part is table for table in tables):
            raise ValueError(f"the part {name!r} has no examples")
    client = _column(train, reading.client) if reading.client else []
    owners: Labels | None = None
    if client:
        owners = np.unique(np.array(client), return_inverse=True)[1].astype(np.int64)
    if is_image(train.features[reading.input]):
        inputs = _images(tables, reading)
        about: dict[str, Any] = {"max_value": 255}
    else:
        texts = [_column(table, reading.input) for table in tables]
        about = {"kind": "text"}
        if not reading.label:
            windows = [list(_windows(part)) for part in texts]
            if owners is not None:
                owners = owners[[place for place, _ in windows[0]]]
            texts = [[window for _, window in part] for part in windows]
            if not all(texts):
                raise ValueError(
                    f"the texts of the column {reading.input!r} have no window of {_WINDOW} "
                    "characters and one to be guessed: set label-column, if they have labels"
                )
        length = min(_LONGEST, max(len(text) for text in texts[0]))
        if not length:
            raise ValueError(f"the texts of the column {reading.input!r} are all empty")
        codes = _encoded(texts, length)
        inputs = codes if reading.label else [part[:, :-1] for part in codes]
    if reading.label:
        labels, num_classes = _labels(tables, reading.label)
    else:
        labels = [part[:, -1].astype(np.int64) for part in codes]
        num_classes = 1 + max(int(part.max()) for part in codes)
    if len(tables) == 1:
        if owners is None and not reading.label:
            held = last_tenth_of_each(np.zeros(len(labels[0]), np.int64))
        elif owners is None:
            held = every_nth_of_each_class(labels[0], 10)
        else:
            held = last_tenth_of_each(owners)
            owners = owners[~held]
        if not held.any():
            raise ValueError(
                f"there is no test part, and {len(held)} examples are too few to hold back a tenth "
                "of those of each client or class"
            )
        inputs = [inputs[0][~held], inputs[0][held]]
        labels = [labels[0][~held], labels[0][held]]
    return Data(
        inputs[0], labels[0], inputs[1], labels[1], num_classes, title, clients=owners, **about
    )


def is_image(feature: Any) -> bool:
    """Return whether a column has images."""
    return type(feature).__name__ == "Image"


def _is_text(feature: Any) -> bool:
    return getattr(feature, "dtype", "") in ("string", "large_string")


def _found(features: Mapping[str, Any], given: Reading) -> Reading:
    """Return the columns that are given, and those that the types of the others tell."""
    columns = ", ".join(f"{name} ({_type(each)})" for name, each in features.items())
    for setting, column in zip(("input", "label", "client"), given[:3], strict=True):
        if column and column not in features:
            raise ValueError(f"{setting}-column = {column!r}, but the columns are {columns}")
    label = given.label
    if not label:
        classes = [name for name, f in features.items() if type(f).__name__ == "ClassLabel"]
        if len(classes) > 1:
            raise ValueError(f"set label-column to one of {', '.join(classes)}")
        label = next(iter(classes), "") or next((n for n in _LABELS if n in features), "")
    free = {name: f for name, f in features.items() if name not in (label, given.client)}
    chosen = given.input
    for fits in (is_image, _is_text):
        names = [name for name, feature in free.items() if fits(feature)]
        if len(names) > 1 and not chosen:
            raise ValueError(f"set input-column to one of {', '.join(names)}")
        chosen = chosen or next(iter(names), "")
    if not chosen or not (is_image(features[chosen]) or _is_text(features[chosen])):
        raise ValueError(f"no column of images or text is the input: the columns are {columns}")
    if is_image(features[chosen]) and not label:
        raise ValueError(f"set label-column, the classes of the images: the columns are {columns}")
    return Reading(chosen, label, given.client, given.image_size)


def _type(feature: Any) -> str:
    kind = type(feature).__name__
    return str(feature.dtype) if kind == "Value" else kind


def _test_part(parts: Mapping[str, Any], reading: Reading) -> list[Any]:
    """Return the part to be judged by, if there is one: the first of which labels are known."""
    for name in _TESTS:
        # Some have -1 for every label of the test part, to have it judged elsewhere.
        if name in parts and len(parts) > 1:
            labels = parts[name][reading.label] if reading.label else []
            if not any(label == -1 for label in labels):
                return [parts[name]]
    return []


def _column(table: Any, name: str) -> Sequence[Any]:
    values = list(table[name])
    if None in values:
        raise ValueError(
            f"the column {name!r} has no value in row {values.index(None)}, of {len(values)}: "
            "leave such rows out"
        )
    return values


def _labels(tables: Sequence[Any], name: str) -> tuple[list[Labels], int]:
    """Return the labels of each part from 0 on, and how many classes there are."""
    feature = tables[0].features[name]
    columns = [_column(table, name) for table in tables]
    if type(feature).__name__ == "ClassLabel":
        num_classes = int(feature.num_classes)
        labels = [np.array(column, np.int64) for column in columns]
        if any(part.size and (part.min() < 0 or part.max() >= num_classes) for part in labels):
            raise ValueError(f"the column {name!r} has a label beyond its {num_classes} classes")
        return labels, num_classes
    if not (_is_text(feature) or np.dtype(getattr(feature, "dtype", "O")).kind in "iub"):
        raise ValueError(
            f"the column {name!r} has {_type(feature)}, but labels are classes, whole numbers or "
            "text: set label-column"
        )
    classes = sorted({value for column in columns for value in column})
    places = {value: place for place, value in enumerate(classes)}
    return [np.array([places[v] for v in column], np.int64) for column in columns], len(classes)


def _images(tables: Sequence[Any], reading: Reading) -> list[NDArray[np.uint8]]:
    """Return images of shape (N, channels, height, width), of the first one's kind and size."""
    first = tables[0][0][reading.input]
    mode = "L" if first is not None and first.mode in _GREY else "RGB"
    size = (reading.image_size,) * 2 if reading.image_size else None
    parts = []
    for table in tables:
        part = np.empty(0, np.uint8)
        for place, example in enumerate(table.select_columns([reading.input])):
            image = example[reading.input]
            if image is None:
                raise ValueError(f"the column {reading.input!r} has no image in row {place}")
            image = image.convert(mode)
            image = image.resize(size) if size and image.size != size else image
            if image.size != (size or first.size):
                raise ValueError(
                    f"image {place} is {image.width}x{image.height}, but the first is "
                    f"{first.width}x{first.height}: set image-size, to which all are resized"
                )
            pixels = np.asarray(image)
            if not place:
                part = np.empty((len(table), *pixels.shape), np.uint8)
            part[place] = pixels
            tell("images", place + 1, len(table))
        part = part[:, None] if mode == "L" else part.transpose(0, 3, 1, 2)
        parts.append(np.ascontiguousarray(part))
    return parts


def _windows(texts: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Yield windows of texts, one after the other, each with the next character and its text."""
    for place, text in enumerate(texts):
        for start in range(0, len(text) - _WINDOW, _WINDOW):
            yield place, text[start : start + _WINDOW + 1]


def _encoded(texts: Sequence[Sequence[str]], length: int) -> list[NDArray[np.uint8]]:
    """Return codes of characters, shape (N, length), short texts with zeros before them."""
    counts = np.zeros(0x110000, np.int64)
    for points in _code_points(texts[0], length):
        values, found = np.unique(points, return_counts=True)
        counts[values] += found
    counts[0] = 0
    frequent = np.argsort(-counts, kind="stable")[: _CODES - 1]
    frequent = np.sort(frequent[counts[frequent] > 0])
    codes = np.zeros(0x110000, np.uint8)
    codes[frequent] = np.arange(1, len(frequent) + 1)
    return [
        np.concatenate([codes[points] for points in _code_points(part, length)]) for part in texts
    ]


def _code_points(texts: Sequence[str], length: int) -> Iterator[NDArray[np.uint32]]:
    for start in range(0, len(texts), _AT_ONCE):
        some = [text[:length].rjust(length, "\0") for text in texts[start : start + _AT_ONCE]]
        yield np.array(some, f"<U{length}").view("<u4").reshape(len(some), length)
