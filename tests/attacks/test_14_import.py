"""What is imported is in the file, and one odd file is skipped with its reason."""

from __future__ import annotations

import json
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.attacks.conftest import tree_digest
from tests.miniatures import run

from clipset.features.store import open_store

h5py = pytest.importorskip("h5py")
SECRET = b"root:x:0:0:root, and more of a file of the system"


def rows(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(4, 6)).astype(np.float32)


def bring(
    source: Path, out: Path, capsys: pytest.CaptureFixture[str], *words: object
) -> dict[str, str]:
    """Import a folder; the reasons of what was skipped."""
    assert run("import", source, "--out", out, "--json", "--quiet", *words) == 0
    found: dict[str, str] = json.loads(capsys.readouterr().out)["failed"]
    return found


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Three good files."""
    folder = tmp_path / "features"
    folder.mkdir()
    for number in range(3):
        np.save(folder / f"good{number}.npy", rows(number))
    return folder


def npy_header(shape: tuple[int, ...]) -> bytes:
    text = repr({"descr": "<f4", "fortran_order": False, "shape": shape}).encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


def test_hdf5_reads_no_byte_of_another_file(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(SECRET)
    with h5py.File(tmp_path / "other.hdf", "w") as file:
        file["features"] = np.frombuffer(SECRET[:24], np.uint8).reshape(4, 6)
    with h5py.File(source / "external.h5", "w") as file:
        file.create_dataset("features", (4, 6), "u1", external=[(str(secret), 0, 24)])
    with h5py.File(source / "link.h5", "w") as file:
        file["features"] = h5py.ExternalLink(str(tmp_path / "other.hdf"), "features")
    with h5py.File(source / "soft.h5", "w") as file:
        file["elsewhere"] = h5py.ExternalLink(str(tmp_path / "other.hdf"), "/")
        file["features"] = h5py.SoftLink("/elsewhere/features")
    with h5py.File(source / "virtual.h5", "w") as file:
        layout = h5py.VirtualLayout((4, 6), "u1")
        layout[:] = h5py.VirtualSource(str(tmp_path / "other.hdf"), "features", (4, 6))
        file.create_virtual_dataset("features", layout)
    with h5py.File(source / "plugin.h5", "w") as file:
        made = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        made.set_chunk((4, 6))
        made.set_filter(307, h5py.h5z.FLAG_OPTIONAL)
        space = h5py.h5s.create_simple((4, 6))
        h5py.h5d.create(file.id, b"features", h5py.h5t.NATIVE_FLOAT, space, made)
    failed = bring(source, tmp_path / "store", capsys, "--dtype", "float32")
    assert {name: reason.split(": ", 1)[1][:22] for name, reason in failed.items()} == {
        "external": "features keeps its num",
        "link": "features is a link, pe",
        "plugin": "features is compressed",
        "soft": "elsewhere is a link, p",
        "virtual": "features keeps its num",
    }
    store = open_store(tmp_path / "store")
    assert store.ids == ("good0", "good1", "good2")
    stolen = np.frombuffer(SECRET[:4], np.uint8).astype(np.float32).tobytes()
    for name, content in tree_digest(tmp_path / "store").items():
        assert stolen not in content, name


def test_a_file_that_announces_more_than_it_holds_takes_no_memory(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (source / "a.npy").write_bytes(npy_header((10**15, 6)) + bytes(96))
    np.save(source / "b.npy", rows(9))
    (source / "b.times.npy").write_bytes(npy_header((10**12, 2)) + bytes(96))
    with zipfile.ZipFile(source / "c.npz", "w") as archive:
        archive.writestr("features.npy", npy_header((10**12, 6)) + bytes(96))
    with zipfile.ZipFile(source / "d.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("features.npy", npy_header((4, 6)) + bytes(96))
        archive.infolist()[0].file_size = 2**40  # as of a bomb
    torch.save(torch.zeros(1).expand(10**6, 10**6), source / "e.pt")
    with h5py.File(source / "f.h5", "w") as file:
        file.create_dataset("features", (10**12, 6), "f4", chunks=(1024, 6), compression="gzip")
    failed = bring(source, tmp_path / "store", capsys)
    assert list(failed) == list("abcdef")
    for name in "cdef":
        assert "claims" in failed[name], failed[name]
    assert open_store(tmp_path / "store").ids == ("good0", "good1", "good2")


def test_odd_bytes_of_any_kind_are_a_recorded_skip(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(source / "a wide.npy", np.ones((4, 7), np.float32))  # the first file is the odd one
    np.save(source / "b empty.npy", np.ones((0, 6), np.float32))
    np.save(source / "c large.npy", np.full((4, 6), 1e300))
    np.save(source / "d complex.npy", np.ones((4, 6), np.complex64))
    np.savez(source / "f times.npz", features=rows(1), times=np.array(["now"] * 4))
    np.savez(source / "g late.npz", features=rows(1), times=np.full((4, 2), [1e300, 2e300]))
    torch.save(torch.ones(4, 6).to_sparse(), source / "h sparse.pt")
    torch.save({"features": torch.ones(4, 6).requires_grad_()}, source / "i gradient.pt")  # good
    rng = np.random.default_rng(0)
    heads = {
        "npy": b"\x93NUMPY", "npz": b"PK\x03\x04", "pt": b"PK\x03\x04", "pth": b"\x80\x02",
        "h5": b"\x89HDF\r\n\x1a\n",
    }  # fmt: skip
    for ending, head in heads.items():
        (source / f"j nothing.{ending}.{ending}").write_bytes(b"")
        for number in range(10):
            content = head + rng.bytes(int(rng.integers(1, 400)))
            (source / f"k random {number} {ending}.{ending}").write_bytes(content)
    good = (source / "good0.npy").read_bytes()
    for cut in (1, 7, 11, 60, 127, 129):
        (source / f"l cut {cut}.npy").write_bytes(good[:cut])
    failed = bring(source, tmp_path / "store", capsys, "--dtype", "float32")
    store = open_store(tmp_path / "store")
    assert store.ids == ("good0", "good1", "good2", "i gradient")
    assert len(failed) == 7 + 5 * 11 + 6
    assert all(reason and "\n" not in reason for reason in failed.values())
    assert failed["a wide"].endswith("its features have 7 numbers, others 6")
    assert np.isfinite(store.random.features).all()
