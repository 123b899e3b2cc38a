"""The .jsonl files of a run: history.jsonl, the losses of every step, and skipped.jsonl, the images left out."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lifelabel.errors import UserError
from lifelabel.utils.files import open_regular, writing

_BLOCK = _MAX_LINE = 1 << 20


class JsonLines:
    """A .jsonl file that grows. When a run resumes, lines after the last checkpoint are cut off.

    The lines before it, `keep_bytes` bytes, must have the given SHA-256.
    """

    def __init__(self, path: Path, keep_bytes: int = 0, sha256: str | None = None):
        self.path, self._sha256 = path, hashlib.sha256()
        if path.exists() and not path.is_file():
            raise UserError(f"cannot write {path}: not a regular file; delete it, or run again with --overwrite")
        with writing(path):
            self._file = open(path, "ab")
        try:
            self._check(keep_bytes, sha256)
            with writing(path):
                self._file.truncate(keep_bytes)
                self._file.seek(keep_bytes)
        except BaseException:
            self._file.close()
            raise

    def _check(self, keep_bytes: int, sha256: str | None) -> None:
        if self._file.tell() < keep_bytes:
            raise UserError(f"{self.path} is shorter than when the checkpoint was written: it was cut or changed since")
        with open_regular(self.path) as file:
            left = keep_bytes
            while left and (block := file.read(min(_BLOCK, left))):
                self._sha256.update(block)
                left -= len(block)
        if sha256 is not None and self.sha256 != sha256:
            raise UserError(
                f"{self.path} is not as it was when the checkpoint was written: restore it from a copy, or run again "
                "with --config and --overwrite"
            )

    @property
    def sha256(self) -> str:
        """The SHA-256 of all lines so far."""
        return self._sha256.hexdigest()

    def write(self, row: dict[str, Any]) -> None:
        line = json.dumps(row).encode() + b"\n"
        self._sha256.update(line)
        with writing(self.path):
            self._file.write(line)

    def sync(self) -> int:
        """Flush all lines to the disk. Returns the length of the file."""
        with writing(self.path):
            self._file.flush()
            os.fsync(self._file.fileno())
        return self._file.tell()

    def close(self) -> None:
        with writing(self.path):
            self._file.close()


def read_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The lines of an untrusted .jsonl file, with their numbers from 1. A damaged one is a `UserError`."""
    with open_regular(path) as file:
        for number, text in enumerate(iter(lambda: file.readline(_MAX_LINE), b""), 1):
            try:
                line = json.loads(text)
            except (ValueError, RecursionError):
                line = None
            if not isinstance(line, dict):
                raise UserError(f"{path}, line {number}, is damaged")
            yield number, line
