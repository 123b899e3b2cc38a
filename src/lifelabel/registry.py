"""Registries of methods, streams, backbones and metrics, and the plug-ins that add to them.

A plug-in is Python code outside this package. There are three ways to add one:

- an installed package with an entry point in the group `lifelabel.methods`, `lifelabel.streams`, `lifelabel.backbones`
  or `lifelabel.metrics`;
- a file or module given with `--plugin` (or in `$LIFELABEL_PLUGINS`): its methods are found as those of lifelabel are
  (see `definitions`), and other objects call `register`;
- an object given as `module:NAME` or `FILE.py:NAME` in place of a name, as in `--method my_module:MyMethod`.

Code is imported only if it is installed with an entry point, or if the user names it. A name in a file, such as the
config.yaml of a run folder, imports nothing.
"""

from __future__ import annotations

import ast
import dataclasses
import hashlib
import importlib
import importlib.metadata
import importlib.util
import math
import os
import sys
import traceback
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, TypeVar

from lifelabel.errors import UserError, reason, unknown

_T = TypeVar("_T")
_VARIABLE = "LIFELABEL_PLUGINS"


class _Plugin(NamedTuple):
    entry: str
    """Its entry in `$LIFELABEL_PLUGINS`: the absolute path of a file, or the name of a module."""
    module: ModuleType
    digest: str
    """The SHA-256 of its file when it was imported."""


_plugins: dict[str, _Plugin] = {}
"""The plug-ins of this process by the name of their module."""
_finding: list[Registry[Any]] = []
"""The registries that find the classes of plug-ins."""
_importing: list[str] = []
"""What is being imported: plug-ins, and objects of installed packages."""


class Definition(NamedTuple):
    """A class in a Python file that can be registered."""

    name: str
    module: str
    class_name: str
    position: float
    """Its place in lists. A class that does not declare one comes last."""


def definitions(path: Path) -> list[Definition]:
    """The classes that set `summary` in a Python file, or in the files of a folder. Nothing is imported.

    A class has the name in its attribute `name`, or else, if it is the only such class of its file, that of the file:
    `my-bar` in my_bar.py. Classes are in the order of their `position` and name.
    """
    found = []
    for file in sorted(path.glob("*.py")) if path.is_dir() else [path]:
        classes = [node for node in ast.parse(file.read_bytes(), str(file)).body if isinstance(node, ast.ClassDef)]
        declared = {each.name: attributes for each in classes if "summary" in (attributes := _attributes(each))}
        unnamed = [each for each, attributes in declared.items() if "name" not in attributes]
        for class_name, attributes in declared.items():
            if class_name not in unnamed or len(unnamed) == 1:
                name = attributes.get("name", file.stem.replace("_", "-"))
                found.append(Definition(name, file.stem, class_name, attributes.get("position", math.inf)))
    return sorted(found, key=lambda each: (each.position, each.name))


def _attributes(node: ast.ClassDef) -> dict[str, Any]:
    """The attributes that a class body assigns. The value is None if it is not a literal."""
    found: dict[str, Any] = {}
    for statement in node.body:
        if isinstance(statement, (ast.Assign, ast.AnnAssign)) and statement.value is not None:
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            names = [each.id for target in targets for each in ast.walk(target) if isinstance(each, ast.Name)]
            value = statement.value.value if isinstance(statement.value, ast.Constant) else None
            found |= dict.fromkeys(names, value)
    return found


class Registry(Mapping[str, _T]):
    """Objects by name: built-in ones, those of plug-ins, and those of installed packages (entry points).

    If an entry point has the name of a built-in object, it is ignored.

    >>> colours: Registry[int] = Registry("colour")
    >>> colours.register("red", 1)
    1
    >>> colours["red"], list(colours)
    (1, ['red'])
    """

    def __init__(
        self, kind: str, check: Callable[[Any], bool] = lambda item: True, expected: str = "", *, finds: bool = False
    ):
        """`finds`: the classes of plug-ins are found by themselves (see `definitions`)."""
        self.kind, self.check, self.expected = kind, check, expected
        if finds:
            _finding.append(self)
        self._items: dict[str, _T] = {}
        self._own: set[str] = set()
        """The names that neither lifelabel nor a plug-in has registered, but the program that uses lifelabel."""
        self._entry_points: dict[str, importlib.metadata.EntryPoint] | None = None

    def register(self, name: str, item: _T | None = None) -> Any:
        """Add `item` under `name`. Without an item, return a decorator that adds the decorated object."""
        if not isinstance(name, str):
            raise UserError(f"a {self.kind} is registered under a name: register('my-{self.kind}')")
        if item is None:
            return lambda decorated: self.register(name, decorated)
        if name in self._items and not _same_definition(self._items[name], item):
            raise UserError(f"{self.kind} '{name}' is registered already: choose another name")
        self._items[name] = self._checked(name, item)
        if not _importing:
            self._own.add(name)
        return item

    def register_package(self, package: str, folder: Path) -> None:
        """Register the classes of a package of lifelabel (see `definitions`) as built-in ones."""
        for each in definitions(folder):
            self.register(each.name, getattr(importlib.import_module(f"{package}.{each.module}"), each.class_name))
        self.set_built_in()

    def register_plugin(self, module: ModuleType) -> None:
        """Register the classes of a plug-in (see `definitions`), except those that it has registered itself."""
        path = Path(module.__file__ or "")
        for each in definitions(path) if path.suffix == ".py" else ():
            item = getattr(module, each.class_name, None)
            if self.check(item) and item not in self._items.values():
                self.register(each.name, item)

    def set_built_in(self) -> None:
        """Declare that all objects so far are those of lifelabel."""
        self._own.clear()

    def own_items(self) -> dict[str, _T]:
        """The objects that a child process can get from this process only. Plug-ins it loads itself."""
        return {name: self._items[name] for name in sorted(self._own & self._items.keys())}

    def __getitem__(self, name: str) -> _T:
        if name not in self._items:
            _load_environment()  # this can register the name
        if name not in self._items:
            found = self._from_plugin(name) if ":" in name else self._from_entry_point(name)
            self._items[name] = self._checked(name, found)
        return self._items[name]

    def __iter__(self) -> Iterator[str]:
        _load_environment()
        return iter(dict.fromkeys([*self._items, *self._installed()]))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, name: object) -> bool:
        if not isinstance(name, str):
            return False
        try:
            self[name]
        except KeyError:
            return False
        return True

    def registered(self) -> dict[str, _T]:
        """The objects that are registered in this process. Nothing is imported."""
        return dict(self._items)

    def find(self, name: Any) -> _T:
        """The object called `name`; a `UserError` with the closest name if there is none."""
        if isinstance(name, str) and name in self:
            return self[name]
        if isinstance(name, type):
            call = f"{self.kind.upper()}S.register('my-{self.kind}', {name.__name__})"
            raise UserError(f"give a {self.kind} by its name: {call}, or module:NAME")
        plugin, colon, attribute = str(name).rpartition(":")
        file = str(name).removesuffix(":")
        if _is_file(file):
            raise UserError(f"'{name}' is a file: give {file}:NAME, with the name of the {self.kind} in it")
        if colon and attribute and (_is_file(plugin) or _is_module(plugin)):
            choices = plugin if _is_file(plugin) else f"{plugin} or {plugin}.py"
            raise UserError(f"{self.kind} '{name}' is in a plug-in that is not loaded: give --plugin {choices}")
        raise unknown(self.kind, name, self)

    def _installed(self) -> dict[str, importlib.metadata.EntryPoint]:
        if self._entry_points is None:
            points = importlib.metadata.entry_points(group=f"lifelabel.{self.kind}s")
            self._entry_points = {point.name: point for point in reversed(list(points))}  # the first on the path
        return self._entry_points

    def _from_entry_point(self, name: str) -> Any:
        point = self._installed()[name]
        package = point.dist.name if point.dist else point.module
        return _import(point.load, f"the {self.kind} '{name}' of the installed package {package}")

    def _from_plugin(self, name: str) -> Any:
        file, _, attribute = name.rpartition(":")
        plugin = _module_name(file)
        if plugin not in _plugins:
            raise KeyError(name)
        if not hasattr(_plugins[plugin].module, attribute):
            raise UserError(f"plug-in {plugin} has no '{attribute}': give {plugin}:NAME with a name that it defines")
        return getattr(_plugins[plugin].module, attribute)

    def _checked(self, name: str, item: Any) -> _T:
        if not self.check(item):
            raise UserError(f"'{name}' is not a {self.kind}: it must be {self.expected}")
        return item


def load_plugin(plugin: str) -> str:
    """Import a plug-in, a file FILE.py or an importable module, and return the name of its module.

    This runs its code. Child processes load the same plug-ins, through `$LIFELABEL_PLUGINS`.
    """
    path = Path(plugin).expanduser()
    is_file, name = _is_file(plugin), _module_name(plugin)
    entry = str(path.absolute()) if is_file else plugin
    if is_file and not path.is_file():
        raise UserError(f"there is no plug-in file {path}: give --plugin FILE.py or a module")
    if is_file and not name.isidentifier():
        raise UserError(f"{path} cannot be imported: rename it to a Python name, such as my_method.py")
    if not _is_module(name):
        raise UserError(f"'{plugin}' is not a plug-in: give --plugin FILE.py or a module")
    if os.pathsep in entry:
        raise UserError(f"{entry} cannot be listed in ${_VARIABLE}: move it to a folder without '{os.pathsep}'")
    folder = str(path.absolute().parent if is_file else Path.cwd())
    if folder not in sys.path:
        sys.path.append(folder)  # last: a plug-in hides no installed module
    if is_file:
        _check_name_is_free(name, path)
    module = _import(lambda: _import_plugin(name), f"the plug-in {plugin}")
    if name not in _plugins:
        source = Path(module.__file__) if module.__file__ else None
        digest = hashlib.sha256(source.read_bytes()).hexdigest() if source and source.is_file() else ""
        _plugins[name] = _Plugin(entry, module, digest)
        os.environ[_VARIABLE] = os.pathsep.join(dict.fromkeys([*_environment(), entry]))
    return name


def loaded_plugins() -> list[str]:
    """The plug-ins of this process: absolute paths of files, and names of modules."""
    _load_environment()
    return [plugin.entry for plugin in _plugins.values()]


def plugin_digests() -> dict[str, str]:
    """The SHA-256 of the file of each plug-in when it was imported, by the name of its module."""
    return {name: plugin.digest for name, plugin in _plugins.items()}


def register_items(registries: Sequence[Registry[Any]], items: Sequence[Mapping[str, Any]]) -> None:
    """Register the objects that a child process has got from its parent (see `Registry.own_items`)."""
    for registry, named in zip(registries, items, strict=True):
        for name, item in named.items():
            registry.register(name, item)


def resolve_name(name: Any) -> Any:
    """The name of an object in its registry. The plug-in in `module:NAME` or `FILE.py:NAME` is loaded."""
    plugin, colon, attribute = name.rpartition(":") if isinstance(name, str) else ("", "", "")
    if not (colon and attribute.isidentifier() and (_is_file(plugin) or _is_module(plugin))):
        return name
    return f"{load_plugin(plugin)}:{attribute}"


def resolve_names(values: Mapping[str, Any], named: Container[str]) -> dict[str, Any]:
    """Options with `resolve_name` applied to those in `named`."""
    return {name: resolve_name(value) if name in named else value for name, value in values.items()}


def check_plugins(plugins: tuple[str, ...]) -> tuple[str, ...]:
    """The plug-ins of a configuration: the given ones, and the others that are loaded.

    A given one that the user has not loaded is refused. It is not loaded here: that runs its code.
    """
    _load_environment()
    for plugin in plugins:
        if _module_name(plugin) not in _plugins:
            raise UserError(f"this run needs the plug-in {plugin}: give --plugin {plugin}, which runs its code")
    given = {_module_name(plugin) for plugin in plugins}
    return (*plugins, *(plugin.entry for name, plugin in _plugins.items() if name not in given))


def _same_definition(one: Any, other: Any) -> bool:
    """Whether two objects have one definition, perhaps executed again (a cell of a notebook that runs twice).

    Classes and functions are compared by their names, and dataclass instances, such as a `Metric`, field by field.
    """
    if one is other:
        return True
    if dataclasses.is_dataclass(one) and not isinstance(one, type):
        fields = dataclasses.fields(one)
        return type(one) is type(other) and all(
            _same_definition(getattr(one, field.name), getattr(other, field.name)) for field in fields
        )
    if not callable(one):
        return bool(one == other)
    names = [(getattr(item, "__module__", ""), getattr(item, "__qualname__", "<lambda>")) for item in (one, other)]
    return names[0] == names[1] and not names[0][1].endswith("<lambda>")


def _is_file(plugin: str) -> bool:
    return plugin.endswith(".py")


def _is_module(text: str) -> bool:
    return all(part.isidentifier() for part in text.split("."))


def _module_name(plugin: str) -> str:
    return Path(plugin).stem if _is_file(plugin) else plugin


def _environment() -> list[str]:
    return [plugin for plugin in os.environ.get(_VARIABLE, "").split(os.pathsep) if plugin]


def _load_environment() -> None:
    for plugin in _environment():
        if _module_name(plugin) not in _plugins:
            load_plugin(plugin)


def _check_name_is_free(name: str, path: Path) -> None:
    """Refuse a plug-in file if `import name` imports another module."""
    importlib.invalidate_caches()  # the file may be new
    if name in sys.modules:
        origin = getattr(sys.modules[name], "__file__", None)
    else:
        origin = getattr(importlib.util.find_spec(name), "origin", None)
    if origin is None or Path(origin).resolve() != path.resolve():
        raise UserError(f"{path} has the name of another module ({origin or name}): rename it")


def _import_plugin(name: str) -> ModuleType:
    module = importlib.import_module(name)
    for registry in _finding:
        registry.register_plugin(module)
    return module


def _import(load: Callable[[], Any], what: str) -> Any:
    """The result of `load`. An error in the imported code becomes one line with its file and line."""
    _importing.append(what)
    try:
        return load()
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        raise UserError(f"{what} cannot be imported: {reason(error)}{_where(error)}") from error
    finally:
        _importing.pop()


def _where(error: BaseException) -> str:
    """File and line of an error in imported code. Empty for a SyntaxError, which has them in its message."""
    machinery = Path(importlib.__file__).parent
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = Path(frame.filename)
        if path.is_file() and path != Path(__file__) and machinery not in path.parents:
            return f" ({path.name}, line {frame.lineno})"
    return ""
