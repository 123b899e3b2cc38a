"""Registries, plug-ins and entry points. Names in files import nothing."""

import os
import sys

import pytest

from lifelabel.config.config import Config
from lifelabel.engine.run import train
from lifelabel.errors import UserError
from lifelabel.methods import METHODS, FineTuning
from lifelabel.metrics import METRICS
from lifelabel.nn.backbones import BACKBONES
from lifelabel.registry import (
    Registry,
    check_plugins,
    definitions,
    load_plugin,
    loaded_plugins,
    resolve_name,
    resolve_names,
)
from lifelabel.streams import STREAMS

PLUGIN = """
from lifelabel import METHODS, FineTuning

@METHODS.register("mine")
class Mine(FineTuning):
    summary = "a method of a plug-in"
"""
OPTIONS = {
    "stream_options": {"train_images": 20, "test_images": 20, "classes": 4, "tasks": 2, "size": 32},
    "device": "cpu",
}


pytestmark = pytest.mark.usefixtures("plugin_state")


@pytest.fixture
def numbers():
    return Registry("number", lambda item: isinstance(item, int), "an int")


@pytest.fixture
def write(tmp_path):
    """Write a file of Python code below the current folder; returns its path."""

    def write(name, code=PLUGIN):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(code)
        return path

    return write


def error_of(call, *arguments):
    """The message of the `UserError` that a call raises: one line."""
    with pytest.raises(UserError) as raised:
        call(*arguments)
    assert "\n" not in str(raised.value)
    return str(raised.value)


# Registries


def test_registered_objects_are_found_by_name(numbers):
    assert numbers.register("one", 1) == 1
    numbers.register("two", 2)
    assert numbers["one"] == numbers.find("one") == 1
    assert list(numbers) == ["one", "two"] and len(numbers) == 2 and dict(numbers) == {"one": 1, "two": 2}
    assert "two" in numbers and "three" not in numbers and 2 not in numbers
    with pytest.raises(KeyError, match="three"):
        numbers["three"]


def test_register_is_a_decorator_that_returns_the_object():
    @METHODS.register("decorated")
    class Decorated(FineTuning):
        pass

    assert METHODS["decorated"] is Decorated and issubclass(Decorated, FineTuning)


def test_a_name_is_registered_once(numbers):
    numbers.register("one", 1)
    numbers.register("one", 1)  # the same object
    assert error_of(numbers.register, "one", 2) == "number 'one' is registered already: choose another name"
    assert numbers["one"] == 1
    assert "'agcn' is registered already" in error_of(METHODS.register, "agcn", FineTuning)


def test_a_class_that_is_defined_again_replaces_the_first():
    """As if the cell of a notebook runs twice."""
    classes = []
    for _ in range(2):

        @METHODS.register("mine")
        class Mine(FineTuning):
            pass

        classes.append(Mine)
    assert classes[0] is not classes[1] and METHODS["mine"] is classes[1]
    functions = Registry("function")
    functions.register("f", lambda: 1)
    assert "'f' is registered already" in error_of(functions.register, "f", lambda: 2)  # all lambdas have one name


def test_a_decorator_without_a_name_is_refused():
    assert error_of(METHODS.register, FineTuning) == "a method is registered under a name: register('my-method')"


def test_a_wrong_kind_of_object_is_refused():
    for registry, expected in (
        (METHODS, "'x' is not a method: it must be a subclass of lifelabel.Method"),
        (STREAMS, "'x' is not a stream: it must be a lifelabel.streams.Source with a dataclass of options"),
    ):
        assert error_of(registry.register, "x", int) == expected
        assert "x" not in registry


def test_an_unknown_name_comes_with_the_closest_one(numbers):
    numbers.register("seven", 7)
    assert error_of(numbers.find, "sevne") == "unknown number 'sevne': did you mean 'seven'? (known: seven)"
    assert error_of(numbers.find, 7) == "unknown number '7': (known: seven)"
    assert error_of(METHODS.find, "acgn").startswith("unknown method 'acgn': did you mean 'agcn'? (known: ")


def test_a_name_of_a_plugin_that_is_not_loaded_says_what_to_do(write):
    write("my_method.py")
    expected = "method 'my_method:Mine' is in a plug-in that is not loaded: give --plugin my_method or my_method.py"
    assert error_of(METHODS.find, "my_method:Mine") == expected
    assert "my_method:Mine" not in METHODS and "my_method" not in sys.modules


# Plug-ins


def test_a_file_is_a_plugin(write):
    path = write("folder/my_method.py")
    assert load_plugin("folder/my_method.py") == "my_method"
    assert METHODS["mine"].__name__ == "Mine" and "mine" in list(METHODS)
    assert loaded_plugins() == [str(path)] == os.environ["LIFELABEL_PLUGINS"].split(os.pathsep)
    assert load_plugin(str(path)) == "my_method" and loaded_plugins() == [str(path)]  # again: nothing changes
    assert os.environ["LIFELABEL_PLUGINS"] == str(path)


def test_a_plugin_imports_modules_of_its_own_folder(write):
    write("folder/helper_of_plugin.py", "NAME = 'mine'")
    write("folder/my_method.py", "from helper_of_plugin import NAME\n" + PLUGIN.replace('"mine"', "NAME"))
    load_plugin("folder/my_method.py")
    assert "mine" in METHODS


def test_a_module_in_the_current_folder_is_a_plugin(write):
    write("my_package/__init__.py", "")
    write("my_package/methods.py")
    assert load_plugin("my_package.methods") == "my_package.methods"
    assert "mine" in METHODS and loaded_plugins() == ["my_package.methods"]
    assert METHODS["my_package.methods:Mine"] is METHODS["mine"]


def test_a_plugin_hides_no_installed_module(write, monkeypatch):
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)  # other tests import it
    write("colorsys.py", "raise RuntimeError('this code ran')")
    load_plugin(str(write("my_method.py")))
    import colorsys

    assert hasattr(colorsys, "rgb_to_hsv")


def test_a_file_whose_name_is_no_identifier(write):
    path = write("my-method.py")
    expected = f"{path} cannot be imported: rename it to a Python name, such as my_method.py"
    assert error_of(load_plugin, str(path)) == expected


def test_what_is_neither_a_file_nor_a_module():
    for name in ("", "folder/", "my method", "..", "a..b", ".relative"):
        assert error_of(load_plugin, name) == f"'{name}' is not a plug-in: give --plugin FILE.py or a module"
    expected = "there is no plug-in file missing.py: give --plugin FILE.py or a module"
    assert error_of(load_plugin, "missing.py") == expected
    expected = "the plug-in no_such_module cannot be imported: ModuleNotFoundError: No module named 'no_such_module'"
    assert error_of(load_plugin, "no_such_module") == expected


@pytest.mark.parametrize("name", ["json", "sys", "antigravity", "lifelabel"])
def test_a_file_with_the_name_of_another_module_is_refused(name, write):
    """Imported or not yet: neither module runs."""
    path = write(f"{name}.py", "raise RuntimeError('this code ran')")
    imported = name in sys.modules
    assert error_of(load_plugin, str(path)).startswith(f"{path} has the name of another module (")
    assert (name in sys.modules) == imported


def test_two_files_of_the_same_name(write):
    one, two = write("a/my_method.py"), write("b/my_method.py")
    load_plugin(str(one))
    assert error_of(load_plugin, str(two)) == f"{two} has the name of another module ({one}): rename it"


def test_a_folder_that_the_environment_variable_cannot_hold(write):
    path = write(f"a{os.pathsep}b/my_method.py")
    assert error_of(load_plugin, str(path)).startswith(f"{path} cannot be listed in $LIFELABEL_PLUGINS: move it")


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("\n\nimport no_such_module\n", "ModuleNotFoundError: No module named 'no_such_module' (broken.py, line 3)"),
        ("def f():\n    1 / 0\n\nf()\n", "ZeroDivisionError: division by zero (broken.py, line 2)"),
        ("raise ValueError('one\\ntwo')", "ValueError: one (broken.py, line 1)"),
        ("raise ValueError", "ValueError (broken.py, line 1)"),
        ("import sys\nsys.exit(3)", "SystemExit: 3 (broken.py, line 2)"),
        ("x = 1\nif x\n", "SyntaxError: expected ':' (broken.py, line 2)"),
    ],
)
def test_an_error_in_a_plugin_is_one_line_with_file_and_line(code, reason, write):
    path = write("broken.py", code)
    assert error_of(load_plugin, str(path)) == f"the plug-in {path} cannot be imported: {reason}"
    assert loaded_plugins() == [] and "LIFELABEL_PLUGINS" not in os.environ


def test_a_plugin_that_registers_a_taken_name(write):
    write("taken.py", PLUGIN.replace("mine", "agcn"))
    write("er.py", "from lifelabel import FineTuning\n\nclass Mine(FineTuning):\n    summary = ''")
    for plugin, name in (("taken.py", "agcn"), ("er.py", "er")):
        assert error_of(load_plugin, plugin) == f"method '{name}' is registered already: choose another name"


def test_a_repaired_plugin_is_loaded_in_the_same_process(write):
    path = write("my_method.py", PLUGIN + "\nmistake")
    assert "NameError: name 'mistake' is not defined (my_method.py, line " in error_of(load_plugin, str(path))
    write("my_method.py", PLUGIN)
    load_plugin(str(path))
    assert METHODS["mine"].__name__ == "Mine"


def test_the_environment_names_plugins(write, monkeypatch):
    paths = [write("first_plugin.py"), write("second_plugin.py", PLUGIN.replace("mine", "other"))]
    monkeypatch.setenv("LIFELABEL_PLUGINS", os.pathsep.join(["", *map(str, paths)]))
    assert "other" in METHODS
    assert {"mine", "other"} <= set(METHODS) and loaded_plugins() == list(map(str, paths))


def test_a_mistake_in_the_environment_is_one_line(monkeypatch):
    monkeypatch.setenv("LIFELABEL_PLUGINS", "missing.py")
    assert error_of(list, METHODS) == "there is no plug-in file missing.py: give --plugin FILE.py or a module"
    assert METHODS["agcn"]  # built-in objects need no plug-in


# Methods that are found by themselves

FOUND = """
from lifelabel import FineTuning

class Base(FineTuning):
    rate = 0.1

class My(Base):
    summary = "named by its file"

class Other(Base):
    summary, name = "named by its attribute", None
    name = "other++"

class Stream:
    summary = "not a method"
    name = "stream"
"""


def test_a_class_with_a_summary_is_registered(write):
    write("some_file.py", FOUND)
    before = list(METHODS)
    load_plugin("some_file.py")
    assert list(METHODS) == [*before, "other++", "some-file"]
    assert METHODS["some-file"] is METHODS["some_file:My"] and METHODS["other++"] is METHODS["some_file:Other"]
    assert METHODS.own_items() == {}  # child processes load the plug-in


def test_the_classes_of_a_folder_are_found_without_importing_it(write):
    folder = write("folder/b_second.py", "raise SystemExit\nclass Second:\n    summary = ''").parent
    write("folder/third.py", "class Third:\n    summary: str = ''\n    name = 'a-third'\n    position = 20")
    write("folder/first.py", "class First:\n    summary = ''\n    position = 3")
    write("folder/two_without_name.py", "class A:\n    summary = ''\nclass B:\n    summary = ''")
    found = [(each.name, each.module, each.class_name) for each in definitions(folder)]
    assert found == [("first", "first", "First"), ("a-third", "third", "Third"), ("b-second", "b_second", "Second")]


# Names in place of registered ones


def test_a_name_of_a_file_or_module_is_resolved(write):
    path = write("my_method.py")
    assert resolve_name(f"{path}:Mine") == resolve_name("my_method:Mine") == "my_method:Mine"
    assert METHODS["my_method:Mine"].__name__ == "Mine"
    assert loaded_plugins() == [str(path)] == os.environ["LIFELABEL_PLUGINS"].split(os.pathsep)


@pytest.mark.parametrize("name", ["agcn", "photos.csv", "C:\\photos\\t.csv", "a b:C", "timm/resnet18.a1", ":", None, 3])
def test_other_names_are_not_resolved(name):
    assert resolve_name(name) == name and loaded_plugins() == []


def test_only_flags_of_registries_are_resolved(write):
    write("my_method.py")
    flags = {"method": "my_method:Mine", "weights": "no_such_module:NAME", "lr": 0.1}
    assert resolve_names(flags, ("method", "stream")) == flags and loaded_plugins() == ["my_method"]


def test_an_object_that_a_plugin_does_not_define_or_of_the_wrong_kind(write):
    load_plugin(str(write("my_method.py")))
    expected = "plug-in my_method has no 'Other': give my_method:NAME with a name that it defines"
    assert error_of(METHODS.find, "my_method:Other") == expected
    expected = "'my_method:METHODS' is not a method: it must be a subclass of lifelabel.Method"
    assert error_of(METHODS.find, "my_method:METHODS") == expected


# Entry points


@pytest.fixture
def install(tmp_path):
    """Install a package with entry points, as pip does: code, and a dist-info folder on the path."""

    def install(entry_points, code=PLUGIN, module="some_plugin", package="some-plugin"):
        site = tmp_path / "site"
        info = site / f"{package.replace('-', '_')}-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(entry_points)
        (site / f"{module}.py").write_text(code)
        if str(site) not in sys.path:
            sys.path.insert(0, str(site))

    return install


def test_an_entry_point_is_listed_and_imported_when_it_is_used(install):
    install("[lifelabel.methods]\nmine = some_plugin:Mine\n")
    assert "mine" in list(METHODS) and "some_plugin" not in sys.modules
    assert METHODS["mine"] is sys.modules["some_plugin"].Mine  # the module registers it under the same name
    assert Config.make({"method": "mine"}).method == "mine"
    assert loaded_plugins() == []  # child processes find it as this process does


def test_every_registry_has_its_group(install):
    kinds = ("method", "stream", "backbone", "metric")
    install("".join(f"[lifelabel.{kind}s]\nmy-{kind} = some_plugin:Mine\n" for kind in kinds))
    for kind, each in zip(kinds, (METHODS, STREAMS, BACKBONES, METRICS), strict=True):
        assert each.kind == kind and f"my-{kind}" in list(each)


def test_an_entry_point_with_the_name_of_a_built_in_object_is_ignored(install):
    before = METHODS["agcn"]
    install("[lifelabel.methods]\nagcn = some_plugin:Mine\n")
    assert METHODS["agcn"] is before and list(METHODS).count("agcn") == 1


def test_the_first_of_two_packages_on_the_path_is_used(install, tmp_path):
    install("[lifelabel.methods]\nmine = some_plugin:Mine\n")
    sys.path.append(str((tmp_path / "site").rename(tmp_path / "later")))
    sys.path.remove(str(tmp_path / "site"))
    install("[lifelabel.methods]\nmine = other_plugin:Mine\n", module="other_plugin", package="other-plugin")
    assert METHODS["mine"].__module__ == "other_plugin"


@pytest.mark.parametrize(
    ("entry_point", "code", "reason"),
    [
        ("some_plugin:Mine", "import no_such_module", "No module named 'no_such_module' (some_plugin.py, line 1)"),
        ("some_plugin:Other", PLUGIN, "module 'some_plugin' has no attribute 'Other'"),
        ("gone_plugin:Mine", PLUGIN, "No module named 'gone_plugin'"),
    ],
)
def test_a_broken_entry_point_is_one_line_that_names_the_package(entry_point, code, reason, install):
    install(f"[lifelabel.methods]\nmine = {entry_point}\n", code)
    line = error_of(METHODS.find, "mine")
    assert line.startswith("the method 'mine' of the installed package some-plugin cannot be imported: ")
    assert line.endswith(f"Error: {reason}")
    assert METHODS["agcn"]


def test_an_entry_point_of_the_wrong_kind(install):
    install("[lifelabel.methods]\nmine = some_plugin:FineTuning.summary\n")
    assert error_of(METHODS.find, "mine") == "'mine' is not a method: it must be a subclass of lifelabel.Method"


# Names in files


def test_a_configuration_needs_its_plugins_and_imports_none(write):
    path = write("my_method.py", PLUGIN + "\nopen('ran', 'w')")
    values = {"method": "my_method:Mine", "plugins": [str(path)]}
    expected = f"this run needs the plug-in {path}: give --plugin {path}, which runs its code"
    assert error_of(check_plugins, (str(path),)) == error_of(Config.make, values) == expected
    for names in ({"method": "my_method:Mine"}, {"method": f"{path}:Mine"}, {"stream": f"{path}:Mine"}):
        error_of(Config.make, names)
    error_of(train, "run", values)
    assert not os.path.exists("ran") and "my_method" not in sys.modules and not os.path.exists("run")
    load_plugin(str(path))
    check_plugins((str(path), "my_method"))
    assert Config.make(values).method == "my_method:Mine"


def test_a_plugin_may_move(write, tmp_path):
    before, other = (str(tmp_path / "elsewhere" / name) for name in ("my_method.py", "other_method.py"))
    values = {"method": "my_method:Mine", "plugins": [before]}
    message = f"this run needs the plug-in {before}: give --plugin {before}, which runs its code"
    assert error_of(check_plugins, (before,)) == error_of(Config.make, values) == message
    load_plugin(str(write("my_method.py")))
    check_plugins((before,))
    assert Config.make(values).plugins == (before,)
    message = f"this run needs the plug-in {other}: give --plugin {other}, which runs its code"
    assert error_of(Config.make, {**values, "plugins": [before, other]}) == message


def test_a_run_records_also_the_plugins_that_its_options_do_not_list(write, tmp_path):
    first, second = write("first_plugin.py"), write("second_plugin.py", PLUGIN.replace("mine", "other"))
    load_plugin(str(first))
    result = train(tmp_path / "run", {**OPTIONS, "plugins": [str(first)]}, method=f"{second}:Mine")
    assert result.config.plugins == (str(first), str(second))
