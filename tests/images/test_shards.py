"""Photographs in tar shards: the index, untrusted shards, reading, and roots."""

import io
import os
import pickle
import struct
import tarfile

import numpy as np
import pytest
from PIL import Image

from lifelabel.errors import UserError
from lifelabel.images import shards, tar_index
from lifelabel.images.photographs import FileImages
from lifelabel.images.shards import ShardImages, find_images
from lifelabel.images.source import BadImage, Names, Problems
from lifelabel.streams import build


@pytest.fixture(autouse=True)
def no_shared_state(tmp_path, monkeypatch):
    monkeypatch.setenv("LIFELABEL_CACHE", str(tmp_path / "cache"))
    shards._index.cache_clear()
    shards._open.cache_clear()


def jpeg(grey):
    out = io.BytesIO()
    Image.new("RGB", (8, 8), (grey,) * 3).save(out, "JPEG")
    return out.getvalue()


def member(name, data=b"", **fields):
    info = tarfile.TarInfo(name)
    info.size = len(data)
    for field, value in fields.items():
        setattr(info, field, value)
    return info, data


def write_tar(path, *members, format=tarfile.GNU_FORMAT):
    path.parent.mkdir(exist_ok=True)
    with tarfile.open(path, "w", format=format) as tar:
        for info, data in members:
            tar.addfile(info, io.BytesIO(data))
    return path


def images(path, *names, start=0):
    return write_tar(path, *(member(name, jpeg(start + 10 * n)) for n, name in enumerate(names)))


def grey(source, row):
    return round(float(np.asarray(source.read(row)).mean()))


def problems_of(source):
    found = Problems()
    shards.add_problems(found, source)
    return found.lines()


@pytest.fixture
def folder(tmp_path):
    """Two shards with five images, and files beside them that are ignored."""
    home = tmp_path / "shards"
    notes = [member("a/0.json", b"{}"), member("a/0.cls", b"3")]
    write_tar(home / "train-000000.tar", member("./a/0.jpg", jpeg(0)), *notes, member("a/1.jpg", jpeg(10)))
    images(home / "train-000001.tar", "b/2.png", "été.jpg", f"{'long/' * 40}4.jpg", start=20)
    (home / "photos.csv").write_text("image,labels\na/0.jpg,cat\n")
    return home


NAMES = ["a/0.jpg", "a/1.jpg", "b/2.png", "été.jpg", f"{'long/' * 40}4.jpg", "a/0.json", "none.jpg"]
PRESENT = [True] * 5 + [False] * 2


@pytest.mark.parametrize("root", ["", "train-{000000..000001}.tar", "{train,train}-00000{0,1}.tar"])
def test_images_are_found_and_read_from_a_folder_and_from_a_pattern(folder, root):
    source = find_images(folder / root if root else folder, Names(NAMES))
    assert source.present.tolist() == PRESENT
    assert [grey(source, row) for row in range(5)] == [0, 10, 20, 30, 40]
    with pytest.raises(BadImage, match="no such file"):
        source.read(6)
    swapped = pickle.loads(pickle.dumps(source.take(np.array([4, 6, 1]))))
    assert swapped.present.tolist() == [True, False, True] and [grey(swapped, row) for row in (0, 2)] == [40, 10]
    assert swapped.name(2) == "a/1.jpg" and swapped.key(2) == source.key(1)
    assert find_images(folder / "train-000001.tar", Names(NAMES)).present.tolist() == [False, False, *PRESENT[2:]]


def test_files_come_first_and_tar_files_are_not_read_if_no_image_is_missing(folder):
    (folder / "a").mkdir()
    (folder / "a" / "0.jpg").write_bytes(jpeg(99))
    source = find_images(folder, Names(NAMES))
    assert [grey(source, row) for row in (0, 1)] == [99, 10]
    (folder / "train-000000.tar").write_bytes(b"damaged")
    assert type(find_images(folder, Names(NAMES[:1]))) is FileImages


def test_the_usual_folders_and_the_spellings_of_coco_are_searched(tmp_path):
    path, coco, voc = tmp_path / "s" / "0.tar", "000000000009.jpg", "VOC2007/JPEGImages/000005.jpg"
    images(path, f"val2017/{coco}", f"VOCdevkit/{voc}", "cats/b.jpg")
    names = Names([f"COCO_val2014_{coco}", voc, "b.jpg"])
    assert find_images(tmp_path / "s", names).present.tolist() == [True, True, False]


def test_of_a_repeated_name_the_last_member_counts_and_a_removed_shard_uncovers_the_other(tmp_path):
    home = tmp_path / "s"
    write_tar(home / "0.tar", member("a.jpg", jpeg(0)), member("a.jpg", jpeg(10)))
    images(home / "1.tar", "a.jpg", start=20)
    source = find_images(home, Names(["a.jpg"]))
    assert grey(source, 0) == 20
    assert problems_of(source) == ["2 tar members that repeat the name of another one; the last one is used"]
    (home / "1.tar").unlink()
    assert grey(find_images(home, Names(["a.jpg"])), 0) == 10


def test_only_new_and_changed_shards_are_read_again(folder, monkeypatch):
    read, read_shard = [], tar_index._read_shard
    monkeypatch.setattr(tar_index, "_read_shard", lambda s: read.append(os.path.basename(s.path)) or read_shard(s))

    def find(*names):
        shards._index.cache_clear()
        return find_images(folder, Names(names)).present.tolist()

    assert find(*NAMES) == PRESENT and sorted(read) == ["train-000000.tar", "train-000001.tar"]
    images(folder / "another.tar", "new.jpg")  # its name sorts first, so all shards get other numbers
    images(folder / "train-000001.tar", "b/2.png", "changed.jpg", start=20)
    os.utime(folder / "train-000001.tar", ns=(0, 0))
    read.clear()
    assert find("a/0.jpg", "new.jpg", "changed.jpg", "été.jpg") == [True, True, True, False]
    assert sorted(read) == ["another.tar", "train-000001.tar"]
    (folder / "another.tar").unlink()
    read.clear()
    assert find("a/1.jpg", "new.jpg", "b/2.png") == [True, False, True] and not read
    for file in (folder.parent / "cache").iterdir():
        file.write_bytes(file.read_bytes()[:-100])
    assert find(*NAMES[:2]) == [True, True] and len(read) == 2


UNSAFE = {
    "outside": member("../a.jpg", jpeg(1)),
    "absolute": member("/etc/a.jpg", jpeg(1)),
    "control character": member("a\x1b[2J.jpg", jpeg(1)),
    "symbolic link": member("a.jpg", type=tarfile.SYMTYPE, linkname="/etc/passwd"),
    "hard link": member("a.jpg", type=tarfile.LNKTYPE, linkname="good.jpg"),
    "device": member("a.jpg", type=tarfile.CHRTYPE, devmajor=1, devminor=5),
    "named pipe": member("a.jpg", type=tarfile.FIFOTYPE),
    "sparse": member("a.jpg", jpeg(1), pax_headers={"GNU.sparse.map": "0,10", "GNU.sparse.size": "99999"}),
}


@pytest.mark.parametrize("kind", UNSAFE)
def test_members_that_are_not_regular_files_with_a_safe_name_are_reported_and_left_out(tmp_path, kind):
    good = member("good.jpg", jpeg(7))
    path = write_tar(tmp_path / "s" / "0.tar", UNSAFE[kind], good, format=tarfile.PAX_FORMAT)
    source = find_images(path, Names(["good.jpg", "a.jpg", "etc/a.jpg", "../a.jpg"]))
    assert source.present.tolist() == [True, False, False, False] and grey(source, 0) == 7
    (line,) = problems_of(source)
    assert line.startswith("1 tar member ") and "0.tar: " in line and line.isprintable()


def test_sizes_that_a_file_may_not_have_are_reported_when_the_image_is_read(tmp_path):
    path = write_tar(tmp_path / "s" / "0.tar", member("empty.jpg"), member("text.jpg", b"text"))
    with open(path, "r+b") as file:  # a large member, without content on the disk
        info = tarfile.TarInfo("large.jpg")
        info.size = 5 << 30
        file.seek(1536)
        file.write(info.tobuf(tarfile.GNU_FORMAT))
        file.truncate(1536 + 512 + (5 << 30) + 1024)
    source = find_images(path, Names(["empty.jpg", "text.jpg", "large.jpg"]))
    for row, why in enumerate(["an empty file", "not an image", "more than 200 MB"]):
        with pytest.raises(BadImage, match=why):
            source.read(row)


def header(name, size, kind=tarfile.REGTYPE):
    """A header with any size, also a negative one."""
    info = tarfile.TarInfo(name)
    info.type = kind
    block = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    block[124:136] = size if isinstance(size, bytes) else b"\xff" * 4 + struct.pack(">q", size)
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


PAX_LENGTH = b"%011o\0" % (1 << 20)
DAMAGED = {
    "no tar file": b"GIF89a" * 1000,
    "no bytes": b"",
    "cut in a member": header("a.jpg", b"%011o\0" % 5000) + b"x" * 1000,
    "cut in a header": header("a.jpg", b"%011o\0" % 512) + b"x" * 512 + header("b.jpg", b"%011o\0" % 512)[:200],
    "damaged header": header("a.jpg", b"%011o\0" % 512) + b"x" * 512 + b"y" * 1024,
    "size beyond the file": header("a.jpg", b"\x80\0\0\0" + struct.pack(">q", 2**62)) + bytes(1024),
    "negative size": header("a.jpg", b"%011o\0" % 0) + header("b.jpg", -512) + bytes(1024),
    "huge extended header": header("x", PAX_LENGTH, tarfile.XHDTYPE) + b"1" * (1 << 20) + bytes(1024),
    "huge name": header("x", PAX_LENGTH, tarfile.GNUTYPE_LONGNAME) + b"a" * (1 << 20) + bytes(1024),
    "chain of extended headers": header("x", b"%011o\0" % 0, tarfile.XHDTYPE) * 5000 + bytes(1024),
}


@pytest.mark.parametrize("kind", DAMAGED)
def test_a_damaged_shard_is_one_line(tmp_path, kind):
    path = tmp_path / "train-000000.tar"
    path.write_bytes(DAMAGED[kind])
    with pytest.raises(UserError, match=r"train-000000.tar is not a complete tar file: .+; copy or make it again") as e:
        find_images(path, Names(["a.jpg"]))
    assert str(e.value).isprintable() and len(str(e.value)) < 400


COMPRESSED = {
    "0.tar": (b"\x1f\x8b\x08\0\0\0\0\0", r"0.tar is compressed \(gzip\)"),
    "0.tar.gz": (b"", r"0.tar.gz is compressed: shards must be .tar files"),
    "0.tar.zst": (b"", r"0.tar.zst is compressed"),
}


@pytest.mark.parametrize("name", COMPRESSED)
def test_a_compressed_shard_is_refused(tmp_path, name):
    data, line = COMPRESSED[name]
    (tmp_path / name).write_bytes(data)
    for root in (tmp_path, tmp_path / name):
        with pytest.raises(UserError, match=line):
            find_images(root, Names(["a.jpg"]))


NO_SHARDS = {
    "train-{000000..000002}.tar": "cannot read the shard .*train-000002.tar: No such file",
    "train-{3..1}.tar": "names no shard",
    "train-{0..99999}{0..99}.tar": "more than 1,000,000",
    "pipe.tar": "not a regular file",
}


@pytest.mark.parametrize("root", NO_SHARDS)
def test_a_root_that_names_no_shards_is_one_line(folder, root):
    os.mkfifo(folder / "pipe.tar")
    with pytest.raises(UserError, match=NO_SHARDS[root]):
        find_images(folder / root, Names(["a.jpg"]))


def test_a_shard_that_changes_after_the_index_was_made_is_not_read(folder):
    source = find_images(folder, Names(NAMES))
    images(folder / "train-000000.tar", "a/1.jpg", "a/0.jpg")
    with pytest.raises(BadImage, match="its shard has changed"):
        source.read(0)
    (folder / "train-000001.tar").unlink()
    with pytest.raises(BadImage, match=r"its shard cannot be read \(No such file"):
        source.read(2)


def test_few_shards_stay_open(tmp_path):
    for number in range(shards._OPEN_SHARDS + 10):
        images(tmp_path / "s" / f"{number:03}.tar", f"{number}.jpg")
    source = find_images(tmp_path / "s", Names(f"{number}.jpg" for number in range(shards._OPEN_SHARDS + 10)))
    before = len(os.listdir("/proc/self/fd"))
    assert all(grey(source, row) == 0 for row in range(len(source)))
    assert len(os.listdir("/proc/self/fd")) - before == shards._OPEN_SHARDS


def test_a_stream_of_shards_has_the_fingerprint_of_the_same_files(tmp_path):
    names = [f"{kind}/{n}.jpg" for kind in ("cat", "dog") for n in range(20)]
    for n, name in enumerate(names):
        (tmp_path / "files" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "files" / name).write_bytes(jpeg(n))
    write_tar(tmp_path / "s" / "0.tar", *(member(name, jpeg(n)) for n, name in enumerate(names)), UNSAFE["outside"])
    table = tmp_path / "photos.csv"
    table.write_text("image,labels\n" + "".join(f"{name},{name[:3]}\n" for name in names))
    files, packed = (build(str(table), {"root": str(tmp_path / root), "tasks": 2}) for root in ("files", "s"))
    assert isinstance(packed.train.images, ShardImages) and packed.train.images.present.all()
    assert packed.fingerprint == files.fingerprint
    for row in range(len(files.train)):
        assert packed.train.images.read(row) == files.train.images.read(row)
    assert [line for line in packed.problems.lines() if "1 tar member " in line] and not files.problems.lines()
    assert not shards._index.cache_info().currsize
