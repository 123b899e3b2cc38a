"""The names of the files of a run stand in one module."""

import ast
import re
from pathlib import Path

from lifelabel.runs import names

SRC = Path(names.__file__).parents[1]
FILES = {
    name for each, name in vars(names).items() if each.isupper() and isinstance(name, str) and "." in name
} - {names.MODEL_CARD}  # fmt: skip
OTHERS = {
    ("cli/metrics.py", "scores.npz"), ("config/run_options.py", "scores.npz"),  # --help
    ("model/exporter.py", "model.json"),  # of an exported model
    ("nn/library_backbones.py", "model.safetensors"),  # of the Hugging Face Hub
}  # fmt: skip


def texts(path):
    """All strings of a module that are not docstrings."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    constants = (node for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in docs)
    return [node.value for node in constants if isinstance(node.value, str)]


def test_no_other_module_names_a_file_of_a_run():
    found = {
        (path.relative_to(SRC).as_posix(), name)
        for path in SRC.rglob("*.py")
        if path != Path(names.__file__)
        for text in texts(path)
        for name in FILES
        if re.search(rf"(?<![\w-]){re.escape(name)}", text)
    }
    assert found == OTHERS and len(FILES) > 10
