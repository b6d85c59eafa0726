"""Records: dataclasses whose methods are written when they are first called.

`dataclasses` writes the methods of a class as text and compiles that, six methods for a frozen one. A command
imports more than a hundred records and calls few of their methods: written in advance, they are a fifth of
what a short command takes. Of most records it makes one or two, which takes less than to write an `__init__`.
Law: but for when they are written, a record's methods are those of `dataclasses`.
"""

import dataclasses
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

Field = dataclasses.Field[Any]
METHODS = {"init": ("__init__",), "repr": ("__repr__",), "eq": ("__eq__", "__hash__")}
"""What each option of `dataclasses.dataclass` has written."""
FEW = 16
"""So many records of a class are made without an `__init__` of its own."""

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(cls: type | None = None, /, **options: bool) -> Any:
        """`dataclasses.dataclass`, with the same options but `order` and `unsafe_hash`."""
        return _record(cls, options) if cls is not None else lambda cls: _record(cls, options)


def _record(cls: type, options: dict[str, bool]) -> Any:
    frozen, own = options.get("frozen", False), dict(vars(cls))
    added = [name for option, names in METHODS.items() if options.get(option, True) for name in names]
    for name in added:
        if name == "__hash__" and not frozen:
            if "__hash__" not in own:
                cls.__hash__ = None  # type: ignore[assignment]  # as of any class that defines only __eq__
        elif name not in own or (name == "__hash__" and own[name] is None):
            setattr(cls, name, _init(options) if name == "__init__" else _later(name, options))
    inherits = any(vars(base).get("__dataclass_params__", None) for base in cls.__mro__[1:])
    if frozen and not inherits:
        for name in ("__setattr__", "__delattr__"):
            setattr(cls, name, _refusal(name))
        if options.get("slots") and not {"__getstate__", "__setstate__"} & own.keys():
            cls.__getstate__ = _state  # type: ignore[method-assign, assignment]
            cls.__setstate__ = _restore  # type: ignore[attr-defined]
    if "__signature__" not in own and "__init__" in added:
        cls.__signature__ = _Signature()  # type: ignore[attr-defined]
    is_compiled = "__mypyc_attrs__" in own  # Its attributes are slots already, and it stays the class it is.
    kept = {key: value for key, value in options.items() if key in ("kw_only", "match_args")}
    slots = options.get("slots", False) and not is_compiled
    kept |= {"slots": slots, "frozen": frozen and inherits}
    made: Any = dataclasses.dataclass(init=False, repr=False, eq=False, **kept)(cls)
    made.__dataclass_params__.frozen = frozen  # what subclasses are held to
    return made


def _later(name: str, options: dict[str, bool]) -> Callable[..., Any]:
    """A method that has the real one written, puts that in its own place, and calls it."""

    def method(self: object, *args: object, **kwargs: object) -> object:
        return _write(_owner(type(self), name, method), name, options)(self, *args, **kwargs)

    method.write = lambda owner: _write(owner, name, options)  # type: ignore[attr-defined]
    return method


def _init(options: dict[str, bool]) -> Callable[..., None]:
    """An `__init__` that fills the first records itself, unless the arguments are wrong."""
    num_made = 0

    def init(self: object, *args: object, **kwargs: object) -> None:
        nonlocal num_made
        num_made += 1
        owner = _owner(type(self), "__init__", init)
        if num_made > FEW or not _fill(self, dataclasses.fields(owner), args, kwargs):
            _write(owner, "__init__", options)(self, *args, **kwargs)

    init.write = lambda owner: _write(owner, "__init__", options)  # type: ignore[attr-defined]
    return init


def _fill(
    self: object, declared: tuple[Field, ...], args: tuple[object, ...], kwargs: dict[str, object]
) -> bool:
    """Set the fields as `__init__` would; False if it would raise TypeError."""
    names = [each.name for each in declared if each.init and not each.kw_only]
    given = dict(zip(names, args, strict=False)) | kwargs
    if len(given) != len(args) + len(kwargs):
        return False
    for each in declared:
        if each.init and each.name in given:
            value = given.pop(each.name)
        elif each.default is not dataclasses.MISSING:
            value = each.default
        elif each.default_factory is not dataclasses.MISSING:
            value = each.default_factory()
        elif each.init:
            return False
        else:
            continue
        object.__setattr__(self, each.name, value)
    if not given and hasattr(self, "__post_init__"):
        self.__post_init__()
    return not given


def _owner(cls: type, name: str, method: object) -> type:
    return next(base for base in cls.__mro__ if vars(base).get(name) is method)


def _write(owner: type, name: str, options: dict[str, bool]) -> Callable[..., Any]:
    """Have `dataclasses` write one method for a class with the same fields, and take it over."""
    declared = dataclasses.fields(owner)
    body: dict[str, Any] = {each.name: each for each in declared}
    body["__annotations__"] = {each.name: each.type for each in declared}
    body |= {"__module__": owner.__module__, "__qualname__": owner.__qualname__, "__doc__": owner.__doc__}
    if hasattr(owner, "__post_init__"):
        body["__post_init__"] = owner.__post_init__
    wanted = {option: name in names for option, names in METHODS.items()}
    twin: Any = dataclasses.dataclass(**{**options, **wanted})(type(owner.__name__, (), body))
    written: Callable[..., Any] = vars(twin)[name]
    setattr(owner, name, written)
    return written


def _refusal(name: str) -> Callable[..., None]:
    """What keeps a frozen record's fields; a plain subclass may have attributes of its own."""
    verb = "assign to" if name == "__setattr__" else "delete"

    def refuse(self: object, field: str, *value: object) -> None:
        owner = _owner(type(self), name, refuse)
        if type(self) is owner or any(field == each.name for each in dataclasses.fields(owner)):
            raise dataclasses.FrozenInstanceError(f"cannot {verb} field {field!r}")
        getattr(super(owner, self), name)(field, *value)

    return refuse


def _state(self: Any) -> list[object]:
    return [getattr(self, each.name) for each in dataclasses.fields(self)]


def _restore(self: Any, state: list[object]) -> None:
    for each, value in zip(dataclasses.fields(self), state, strict=True):
        object.__setattr__(self, each.name, value)


class _Signature:
    """What `inspect.signature` says of a record: that of its `__init__`, which is written for it."""

    def __get__(self, instance: object, cls: type) -> inspect.Signature:
        owner = next(base for base in cls.__mro__ if "__init__" in vars(base))
        init = vars(owner)["__init__"]
        signature = inspect.signature(init.write(owner) if hasattr(init, "write") else init)
        return signature.replace(parameters=[*signature.parameters.values()][1:])
