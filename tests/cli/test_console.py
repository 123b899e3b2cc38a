"""Output in terminals of other encodings, without colours, and in pipes."""

import io
import os
import re
import subprocess
import sys

import pytest
from rich.text import Text

from lifelabel.cli.console import make_console
from lifelabel.cli.progress_bars import ProgressBar
from lifelabel.report.text_tables import rich_grid

CODES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def encoded(text, encoding):
    return text.encode(encoding, "lifelabel").decode(encoding)


def test_characters_are_replaced_by_readable_ascii():
    assert encoded("mAP ↑ 71 ± 2 – a→b … λ1 ≠ 2 ×", "ascii") == "mAP ^ 71 +- 2 - a->b ... lambda1 != 2 x"
    assert encoded("café, Ångström, straße", "ascii") == "cafe, Angstrom, strasse"
    assert encoded("犬 😀", "ascii") == r"\u72ac \U0001f600"
    assert encoded("│─┼╭╮", "ascii") == "|-+++"
    assert encoded("a\udce9", "utf-8") == r"a\udce9"


def test_characters_that_the_encoding_has_stay():
    assert encoded("71 ± 2 – é → …", "cp1252") == "71 ± 2 – é -> …"
    assert encoded("± × –", "latin-1") == "± × -"


@pytest.fixture(scope="module")
def other_language(tmp_path_factory):
    """A table of photographs whose classes are in other languages."""
    from PIL import Image

    folder = tmp_path_factory.mktemp("photos")
    lines = ["image,labels,split"]
    for i, names in enumerate(["犬 – chien", "é±→", "犬 – chien;é±→", "é±→;Ω", "Ω", "犬 – chien;Ω"] * 2):
        Image.new("RGB", (9, 9), (20 * i, 0, 0)).save(folder / f"{i}.png")
        lines.append(f"{i}.png,{names},{'test' if i < 3 else 'train'}")
    (folder / "t.csv").write_text("\n".join(lines), encoding="utf-8")
    return folder


LOCALES = {
    "cp1252": {"PYTHONIOENCODING": "cp1252"},
    "C": {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
}


@pytest.mark.parametrize("name", ["cp1252", "C"])
def test_any_class_name_can_be_printed(name, other_language, tmp_path):
    words = ["data", "inspect", "t.csv", "--root", ".", "--tasks", "2", "--no-sheets", "--out", tmp_path / "a"]
    env = {key: value for key, value in os.environ.items() if not key.startswith(("LC_", "PYTHONUTF8"))} | LOCALES[name]
    done = subprocess.run([sys.executable, "-m", "lifelabel", *words], cwd=other_language, env=env, capture_output=True)
    assert done.returncode == 0, done.stderr
    text = done.stdout.decode("cp1252" if name == "cp1252" else "ascii")
    assert ("犬 – chien" if name == "cp1252" else "犬 - chien").replace("犬", r"\u72ac") in text
    heads = [line for line in text.splitlines() if "given C_j" in line]
    rows = text.splitlines()[text.splitlines().index(heads[0]) :][:4]
    assert len({line.rindex("|") for line in rows if "|" in line}) == 1  # columns are aligned
    assert "犬 – chien" in (tmp_path / "a" / "report.md").read_text(encoding="utf-8")


def test_help_and_errors_in_ascii(lifelabel):
    env = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = lifelabel("train", "--help", env=env)
    assert done.returncode == 0 and done.stdout.isascii() and "+- Options ---" in done.stdout
    done = lifelabel("data", "inspect", "été–犬", env=env)
    assert done.returncode == 2 and r"unknown stream 'ete-\u72ac'" in done.stderr


def run_in_terminal(*words, **env):
    """The output of a command in a terminal."""
    import fcntl
    import pty
    import struct
    import termios

    own, other = pty.openpty()
    fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
    left_out = ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE")
    inherited = {name: value for name, value in os.environ.items() if name not in left_out}
    command = [sys.executable, "-m", "lifelabel", *map(str, words)]
    process = subprocess.Popen(command, stdin=other, stdout=other, stderr=other, env={**inherited, **env})
    os.close(other)
    output = b""
    try:
        while data := os.read(own, 65536):
            output += data
    except OSError:  # the command has ended
        pass
    os.close(own)
    assert process.wait() == 0, output
    return output.decode()


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no pseudo-terminals")
def test_a_terminal_gets_styles_unless_the_environment_forbids_them():
    assert CODES.search(run_in_terminal("--help", TERM="xterm-256color"))
    for env in ({"TERM": "xterm-256color", "NO_COLOR": "1"}, {"TERM": "dumb"}):
        text = run_in_terminal("--help", **env)
        assert "Usage: " in text and not CODES.search(text)


@pytest.mark.parametrize(("variable", "styles"), [("", True), ("1", False)])
def test_no_color_has_no_styles_and_a_progress_bar(variable, styles, monkeypatch):
    monkeypatch.setenv("NO_COLOR", variable)
    monkeypatch.setenv("TERM", "xterm-256color")
    console = make_console(file=io.StringIO(), force_terminal=True, width=120)
    console.print("x", style="bold red")
    assert bool(CODES.search(console.file.getvalue())) == styles
    assert not ProgressBar(console).bar.disable


def test_a_dumb_terminal_has_no_progress_bar(monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    console = make_console(file=io.StringIO(), force_terminal=True, width=120)
    console.print("x", style="bold red")
    assert console.file.getvalue() == "x\n" and ProgressBar(console).bar.disable


@pytest.mark.parametrize("variable", ["GITHUB_ACTIONS", "NO_COLOR"])
def test_help_in_a_pipe_is_plain(lifelabel, variable):
    env = {name: value for name, value in os.environ.items() if name != "FORCE_COLOR"}
    done = lifelabel("--help", env={**env, variable: "true"})
    assert done.returncode == 0 and not CODES.search(done.stdout)


def test_a_file_gets_no_progress_bars_even_with_colours():
    code = "from lifelabel.cli.console import err; print(err.is_terminal, err.is_interactive)"
    env = {**os.environ, "FORCE_COLOR": "1", "TERM": "xterm"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert done.stdout == "True False\n"


def test_heads_and_cells_of_tables_have_no_control_characters():
    table = rich_grid(["a\x1b[31m"], [["b\x1b[2J\u202e"]], 1)
    console = make_console(file=io.StringIO(), width=80)
    console.print(table)
    assert "\x1b" not in console.file.getvalue() and "\u202e" not in console.file.getvalue()
    assert isinstance(table.columns[0].header, Text)
