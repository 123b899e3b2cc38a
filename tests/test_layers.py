"""Import rules of the package: dependencies point one way, and modules import public names of each other."""

import ast
import functools
import subprocess
import sys
from pathlib import Path

SRC = Path(__file__).parents[1] / "src"
MODULES = {
    ".".join(path.relative_to(SRC).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(SRC.rglob("*.py"))
}
LAYERS = (
    ("version", "utils.text", "runs.names"),
    ("errors",),
    ("parallel.torchrun",),
    ("utils", "options", "registry"),
    ("images",),
    ("metrics",),
    ("streams",),
    ("runs",),
    ("parallel",),
    ("nn",),
    ("model",),
    ("methods",),
    ("config",),
    ("engine",),
    ("report",),
    ("search", "serve"),
    ("cli",),
)
"""From the lowest to the highest. A module imports only from its own package and from lower layers."""
OUTSIDE = {"lifelabel", "lifelabel.__main__"}
"""They import the public API, or the command line, and belong to no layer."""


def layer_of(module):
    """The layer with the longest prefix of the module's name."""
    name = module.removeprefix("lifelabel.")
    fitting = [(len(p), n) for n, layer in enumerate(LAYERS) for p in layer if name == p or name.startswith(f"{p}.")]
    assert fitting, f"{module} is in no layer: add it to LAYERS"
    return max(fitting)[1]


@functools.cache
def tree(module):
    return ast.parse(MODULES[module].read_text(encoding="utf-8"))


def imports(module):
    """(imported module, imported name or None) of every import of the package, also inside functions."""
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.Import):
            yield from ((alias.name, None) for alias in node.names if alias.name.split(".")[0] == "lifelabel")
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} has a relative import"
            if node.module.split(".")[0] == "lifelabel":
                for alias in node.names:
                    inner = f"{node.module}.{alias.name}"
                    yield (inner, None) if inner in MODULES else (node.module, alias.name)


def test_imports_point_downwards():
    wrong = []
    for module in sorted(MODULES.keys() - OUTSIDE):
        for imported, name in imports(module):
            assert imported != "lifelabel", f"{module} imports {name} from the public API"
            same_package = imported.split(".")[1] == module.split(".")[1]
            if not same_package and layer_of(imported) >= layer_of(module):
                wrong.append(f"{module} imports {imported}")
    assert not wrong


def test_packages_have_no_import_cycles():
    """Within a package too: modules can be sorted so that each imports only earlier ones."""
    left = {module: {name for name, _ in imports(module)} - {module} for module in MODULES.keys() - OUTSIDE}
    while left:
        free = {module for module, needed in left.items() if not needed & left.keys()}
        assert free, f"import cycle among {sorted(left)}"
        left = {module: needed for module, needed in left.items() if module not in free}


def closure(module):
    """All modules of the package that importing `module` executes, imports inside functions left out."""
    seen, stack = set(), [module]
    while stack:
        name = stack.pop()
        if name in seen or name not in MODULES:
            continue
        seen.add(name)
        parents = name.split(".")
        stack += [".".join(parents[:end]) for end in range(1, len(parents))]
        top = ast.Module([n for n in tree(name).body if isinstance(n, (ast.Import, ast.ImportFrom))], [])
        for node in ast.walk(top):
            if isinstance(node, ast.ImportFrom) and node.module.startswith("lifelabel"):
                stack += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return seen


def test_the_label_server_imports_no_method_and_no_network():
    found = {name.split(".")[1] for name in closure("lifelabel.engine.label_server") if "." in name}
    assert found.isdisjoint({"methods", "nn", "config", "cli", "search", "report"})
    assert {"streams", "metrics", "engine"} <= found


def test_the_package_of_runs_imports_no_torch():
    modules = ", ".join(name for name in MODULES if name.startswith("lifelabel.runs"))
    code = f"import sys, {modules}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_streams_and_metrics_know_nothing_of_each_other():
    assert not any(name.startswith("lifelabel.metrics") for name in closure("lifelabel.streams"))
    assert not any(name.startswith("lifelabel.streams") for name in closure("lifelabel.metrics.functions"))


def defined(module):
    """The top-level names that a module defines."""
    for node in tree(module).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from (n.id for target in targets for n in ast.walk(target) if isinstance(n, ast.Name))


def public(module):
    """The names of a module without an underscore, and those of its `__all__`: it may export imported ones."""
    names = {name for name in defined(module) if not name.startswith("_")}
    for node in tree(module).body:
        if isinstance(node, ast.Assign) and [t.id for t in node.targets if isinstance(t, ast.Name)] == ["__all__"]:
            names.update(ast.literal_eval(node.value))
    return names


def test_modules_import_only_public_names_of_each_other():
    wrong = [
        f"{module} imports {name} from {imported}"
        for module in sorted(MODULES)
        for imported, name in imports(module)
        if name is not None and name != "__version__" and name not in public(imported)
    ]
    assert not wrong
