"""Hypothesis strategies that damage a valid file. Each takes the bytes of the file and draws other bytes.

`damaged` knows nothing about the content: flipped bits, cuts and splices. The others keep the format and change a value
in it, so that the reader gets past its checks of the format.
"""

import copy
import io
import json
import struct
import zipfile

import numpy as np
import yaml
from hypothesis import strategies as st

ODD_VALUES = (
    None, True, False, 0, 1, -1, 2**31, 2**63, -(2**70), 10**400, 0.5, -0.5, 1e308, float("nan"), float("inf"), "",
    "0.5", "text", "\x1b[31mred", "<script>alert(1)</script>", "two\nlines", "\x00", "\ud800", "../../etc/passwd",
    "=1+1", "x" * 100_000, [], [[]], [None], ["a", "a"], [1, 2, 3], list(range(2000)), {}, {"a": 1}, {"": None},
)  # fmt: skip
"""Values of other types, sizes and ranges than a field has."""
ODD_TEXTS = (
    "", "0", "-1", "1e999", "nan", "99999999999999999999", "1:1:1:1", "\x00", "\ufeff", "\r", "\n\n", '"', "'", ",",
    ";", "\t", "&a [*a]", "<<: *a", "!!python/object/apply:os.system [echo]", "&a", "*a", "- " * 300, "[" * 3000,
    "{" * 3000, "?", "|", "<!DOCTYPE a [<!ENTITY b 'c'>]>", "&b;", "<a>" * 3000, "]]>", "=cmd|' /C calc'!A0",
    "../../etc/passwd", "/etc/passwd", "x" * 100_000, "é", "\u202e", "\x1b[2J", "<b>",
)  # fmt: skip
"""Parts of text that a parser may treat in a special way."""
ODD_TYPES = (
    "<f8", "<f4", "<f2", "|b1", "|O", "<U4", "|S3", "<i8", "<u8", "<c16", "|V7", ">f8", "<M8[s]", "<f999", "O", "",
)  # fmt: skip
ODD_SHAPES = ((), (0,), (1,), (3, 0), (2, 2), (-1,), (10**9, 10**9), (2**63,), (5, 5, 5), (1,) * 40, (4,))
_MAX_EDITS = 4


@st.composite
def damaged(draw, data):
    """Flipped bits, a cut, or a part that is removed, repeated, set to zero or replaced."""
    data = bytearray(data)
    for _ in range(draw(st.integers(1, _MAX_EDITS))):
        start = draw(st.integers(0, max(len(data) - 1, 0)))
        end = min(start + draw(st.sampled_from((1, 2, 4, 16, 64, 1000))), len(data))
        match draw(st.integers(0, 6)):
            case 0 | 1 if data:
                data[start] ^= 1 << draw(st.integers(0, 7))
            case 2:
                del data[start:]
            case 3:
                del data[start:end]
            case 4:
                other = draw(st.integers(0, len(data)))
                data[other:other] = data[start:end]
            case 5:
                data[start:end] = bytes(end - start)
            case _:
                data[start:end] = draw(st.binary(min_size=1, max_size=16))
    return bytes(data)


def _draw_path(draw, value):
    """The path of a value inside a value of JSON. It is drawn level by level, so that long lists do not prevail."""
    path = ()
    while isinstance(value, dict | list) and value and (not path or draw(st.integers(0, 3))):
        keys = list(value) if isinstance(value, dict) else range(len(value))
        path += (draw(st.sampled_from(keys)),)
        value = value[path[-1]]
    return path


@st.composite
def changed_value(draw, value):
    """A value of JSON in which some values have another type or range, are missing, or have another name."""
    value = copy.deepcopy(value)
    for _ in range(draw(st.integers(1, 2))):
        path = _draw_path(draw, value) if draw(st.integers(0, 20)) else ()
        odd = draw(st.sampled_from(ODD_VALUES))
        if not path:
            value = copy.deepcopy(odd)
            continue
        owner = value
        for key in path[:-1]:
            owner = owner[key]
        match draw(st.integers(0, 9)):
            case 0:
                del owner[path[-1]]
            case 1 if isinstance(owner, dict):
                owner[odd if isinstance(odd, str) else str(odd)[:50]] = owner.pop(path[-1])
            case 2 if isinstance(owner, list):
                owner.append(copy.deepcopy(owner[path[-1]]))
            case _:
                owner[path[-1]] = copy.deepcopy(odd)
    return value


@st.composite
def json_file(draw, data):
    """A JSON file with a changed value."""
    if draw(st.integers(0, 3)) == 0:
        return draw(damaged(data))
    if draw(st.integers(0, 30)) == 0:
        return draw(
            st.sampled_from((b"[" * 100_000, b'{"a":' * 50_000, b"[" * 500 + b"]" * 500, b"\xff\xfe", b"1" * 5000))
        )
    return json.dumps(draw(changed_value(json.loads(data)))).encode()


@st.composite
def json_lines(draw, data):
    """A .jsonl file with changed lines."""
    lines = data.splitlines(keepends=True)
    if not lines or draw(st.booleans()):
        return draw(damaged(data))
    at = draw(st.integers(0, len(lines) - 1))
    lines[at] = draw(json_file(lines[at])) + b"\n"
    return b"".join(lines)


@st.composite
def text_file(draw, data):
    """A text file with changed lines and parts of lines, or in another encoding."""
    if draw(st.integers(0, 3)) == 0:
        return draw(damaged(data))
    text = data.decode()
    for _ in range(draw(st.integers(1, _MAX_EDITS))):
        lines = text.splitlines(keepends=True) or [""]
        at = draw(st.integers(0, len(lines) - 1))
        odd = draw(st.sampled_from(ODD_TEXTS))
        match draw(st.integers(0, 5)):
            case 0:
                del lines[at]
            case 1:
                lines.insert(at, lines[draw(st.integers(0, len(lines) - 1))])
            case 2:
                lines.insert(at, odd + "\n")
            case _:
                start = draw(st.integers(0, len(lines[at])))
                end = draw(st.integers(start, len(lines[at])))
                lines[at] = lines[at][:start] + odd + lines[at][end:]
        text = "".join(lines)
    return text.encode(draw(st.sampled_from(("utf-8",) * 8 + ("utf-16", "cp1252"))), "replace")


@st.composite
def yaml_file(draw, data):
    """A YAML file with a changed value, or changed as text."""
    if draw(st.booleans()):
        return draw(text_file(data))
    value = draw(changed_value(yaml.safe_load(data)))
    try:
        return yaml.safe_dump(value, allow_unicode=False).encode()
    except (yaml.YAMLError, UnicodeError):
        return json.dumps(value).encode()


def members_of(data):
    """The name and the content of each member of a zip file."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return [(member.filename, archive.read(member)) for member in archive.infolist()]


def zip_of(members, method=zipfile.ZIP_STORED):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        for name, content in members:
            archive.writestr(name, content)
    return out.getvalue()


@st.composite
def zip_file(draw, data, inside=damaged, method=zipfile.ZIP_STORED):
    """A zip file with valid checksums in which a member is changed, missing, doubled or renamed."""
    if draw(st.integers(0, 3)) == 0:
        return draw(damaged(data))
    members = members_of(data)
    at = draw(st.integers(0, len(members) - 1))
    name, content = members[at]
    match draw(st.integers(0, 7)):
        case 0:
            del members[at]
        case 1:
            members.append((draw(st.sampled_from(("../up", "/etc/x", "é", "a" * 300, name.upper(), "x/"))), content))
        case 2:
            members[at] = members[draw(st.integers(0, len(members) - 1))][0], content
        case _:
            members[at] = name, draw(inside(content))
    return zip_of(members, method)


def npy_of(array):
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


def _npy(descr, fortran, shape, data, version=1):
    header = f"{{'descr': {descr!r}, 'fortran_order': {fortran!r}, 'shape': {shape!r}, }}".encode()
    header += b" " * (-(len(header) + 11) % 64) + b"\n"
    return b"\x93NUMPY" + bytes([version, 0]) + struct.pack("<H" if version == 1 else "<I", len(header)) + header + data


_ODD_ARRAYS = (
    np.zeros(0), np.zeros((0, 5)), np.float64(3), np.full((3, 3), np.nan), np.full(4, -1), np.full((4, 4), 1e300),
    np.array(["a", "<b>"]), np.array([b"a"]), np.zeros((2, 2), complex), np.zeros(2, [("a", "i4")]), np.array([True]),
    np.full(20, 2**62), np.zeros((1, 70_000)), np.array(["\x1b[31m"] * 20), np.zeros((20, 20), np.float16),
)  # fmt: skip


@st.composite
def npy_file(draw, data):
    """An .npy file with another header, other data or another array."""
    match draw(st.integers(0, 4)):
        case 0:
            return draw(damaged(data))
        case 1:
            return npy_of(draw(st.sampled_from(_ODD_ARRAYS)))
        case _:
            array = np.load(io.BytesIO(data))
            descr, fortran = np.lib.format.dtype_to_descr(array.dtype), False
            shape = array.shape
            match draw(st.integers(0, 2)):
                case 0:
                    descr = draw(st.sampled_from(ODD_TYPES))
                case 1:
                    shape = draw(st.sampled_from((*ODD_SHAPES, "text", None, (1.5,))))
                case _:
                    fortran = draw(st.sampled_from((True, 1, "a", None)))
            return _npy(descr, fortran, shape, array.tobytes(), draw(st.sampled_from((1, 1, 1, 2, 3, 9))))


def npz_file(data):
    """An .npz file in which an array is changed, missing or renamed."""
    return zip_file(data, npy_file, zipfile.ZIP_DEFLATED)


def split_safetensors(data):
    """The header of a .safetensors file as a value, and its data."""
    size = struct.unpack("<Q", data[:8])[0]
    return json.loads(data[8 : 8 + size]), data[8 + size :]


@st.composite
def safetensors_file(draw, data):
    """A .safetensors file with another header or other data."""
    if draw(st.integers(0, 2)) == 0:
        return draw(damaged(data))
    header, tensors = split_safetensors(data)
    text = json.dumps(draw(changed_value(header))).encode()
    return struct.pack("<Q", len(text)) + text + tensors


_ODD_FIELDS = (
    b"", b"\xff" * 12, b"77777777777", b"\x80" + b"\xff" * 11, b"-1", b"../../up.jpg", b"/etc/passwd", b"0", b"1", b"2",
    b"3", b"5", b"6", b"S", b"L", b"x", b"g", b"a\nb", b"\x1b[31m", b"00000000000",
)  # fmt: skip


@st.composite
def tar_file(draw, data):
    """A tar file in which a field of a header is changed; its checksum is valid."""
    if draw(st.integers(0, 2)) == 0:
        return draw(damaged(data))
    data = bytearray(data)
    starts = [at for at in range(0, len(data) - 511, 512) if data[at + 257 : at + 262] == b"ustar"]
    start = draw(st.sampled_from(starts))
    field, length = draw(st.sampled_from(((0, 100), (100, 8), (124, 12), (136, 12), (156, 1), (157, 100), (345, 155))))
    odd = draw(st.sampled_from(_ODD_FIELDS))
    data[start + field : start + field + length] = odd[:length].ljust(length, b"\0")
    data[start + 148 : start + 156] = b" " * 8
    data[start + 148 : start + 156] = b"%06o\0 " % sum(data[start : start + 512])
    return bytes(data)
