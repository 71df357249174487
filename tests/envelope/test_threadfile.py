"""Thread files: how a stream is divided into records, and how a file is written."""

import contextlib
import io
import itertools
import os
import resource
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envelope import EnvelopeError, Identity, Witness, open_envelope, sign_record
from envelope.files import write_whole
from envelope.rules import BY_CODE
from envelope.threadfile import divide, read_records, write_records

ROOT = Path(__file__).parents[2]
ADA = Identity.from_seed(b"a" * 32)
LIMIT = 1 << 20


def witness(size: int = 0) -> bytes:
    ext = {"example.org/filling": bytes(size)} if size else None
    return sign_record(Witness, ADA, sent_at=1, thread=bytes(32), seq=0, tip=bytes(32), seen_at=1, ext=ext).raw


PROPER = [witness(size) for size in (0, 9, 200, 300, 70_000)]
# Divisible, although no envelope is like that.
UNUSUAL = [
    b"\xd2\x84\x40\xa0\x40\x40",
    b"\xd2\x83\x01\x02\x03",
    b"\xd2\x84\x40\xa1\x61\x61\x02\x41\0\x58\x40" + bytes(64),
    PROPER[0][:-66] + b"\x58\x41" + bytes(65),
    b"\xd2\x84\x58\xff" + bytes(255) + b"\xa0\x40\x40",
]


class Trickle(io.BytesIO):
    """A stream that gives at most as many bytes at a time as the next of `sizes` says."""

    def __init__(self, data: bytes, sizes: list[int]) -> None:
        super().__init__(data)
        self._sizes = itertools.cycle(sizes)

    def read(self, size: int | None = -1, /) -> bytes:
        wanted = -1 if size is None else size
        most = next(self._sizes)
        return super().read(most if wanted < 0 else min(wanted, most))


class Endless(io.RawIOBase):
    """`head`, then zeroes up to `size`; counts what was read of it."""

    def __init__(self, head: bytes, size: int) -> None:
        self._head = head
        self._size = size
        self.taken = 0

    def read(self, size: int = -1, /) -> bytes:
        end = self._size if size < 0 else min(self._size, self.taken + size)
        block = self._head[self.taken : end].ljust(end - self.taken, b"\0")
        self.taken = end
        return block


def divided(data: bytes) -> list[tuple[int, bytes]]:
    return list(divide(io.BytesIO(data)))


# ---------------------------------------------------------------------------------------------------- reading


def test_a_file_of_records_is_divided_into_them_with_their_offsets(tmp_path: Path) -> None:
    path = tmp_path / "some.thread"
    path.write_bytes(b"".join(PROPER))
    found = list(read_records(path))
    assert [raw for _, raw in found] == PROPER
    assert [offset for offset, _ in found] == [sum(map(len, PROPER[:n])) for n in range(len(PROPER))]


def test_an_empty_file_has_no_records(tmp_path: Path) -> None:
    path = tmp_path / "empty.thread"
    path.touch()
    assert list(read_records(path)) == []
    assert list(read_records(os.devnull)) == []


@settings(max_examples=60)
@given(
    st.lists(st.sampled_from(PROPER + UNUSUAL), max_size=6),
    st.binary(max_size=3)
    | st.sampled_from([PROPER[0][:-1], PROPER[3][:150], PROPER[4][:66_000], b"\xd2", b"\xd2\x84"]),
    st.lists(st.sampled_from([1, 2, 3, 7, 64, 141, 142, 143, 4096, 1 << 20]), min_size=1, max_size=4),
)
def test_however_a_stream_is_chunked_its_records_are_the_same(
    records: list[bytes], tail: bytes, sizes: list[int]
) -> None:
    data = b"".join(records) + tail
    sizes = sizes if len(data) < 2000 or max(sizes) >= 64 else [*sizes, 4096]
    assert list(divide(Trickle(data, sizes))) == divided(data)


@settings(max_examples=200)
@given(st.lists(st.sampled_from(PROPER[:4]), max_size=5), st.sampled_from(UNUSUAL), st.sampled_from(PROPER))
def test_reading_ends_with_the_first_record_that_is_no_envelope(
    records: list[bytes], unusual: bytes, more: bytes
) -> None:
    assert [raw for _, raw in divided(b"".join(records) + unusual + more)] == [*records, unusual]


@settings(max_examples=100)
@given(st.lists(st.sampled_from(PROPER[:4]), max_size=3), st.sampled_from(PROPER), st.data())
def test_a_record_that_the_end_cuts_comes_last(records: list[bytes], last: bytes, data: st.DataObject) -> None:
    cut = last[: data.draw(st.integers(1, len(last) - 1))]
    assert [raw for _, raw in divided(b"".join(records) + cut)] == [*records, cut]
    with pytest.raises(EnvelopeError, match=r"file\.torn"):
        open_envelope(cut)


@settings(max_examples=500)
@given(
    st.binary(max_size=200)
    | st.builds(bytes.__add__, st.sampled_from([*PROPER[:2], b"\xd2\x84", b"\xd2"]), st.binary(max_size=99))
)
def test_any_bytes_are_records_or_refused(data: bytes) -> None:
    found = []
    try:
        found.extend(divide(io.BytesIO(data)))
    except EnvelopeError as error:
        assert error.code == "size.envelope"  # noqa: PT017
        assert data[sum(len(raw) for _, raw in found) :][:2] == b"\xd2\x84"
    place = 0
    for offset, raw in found:
        assert offset == place
        assert raw
        assert data[offset : offset + len(raw)] == raw
        place += len(raw)
        with contextlib.suppress(EnvelopeError):
            open_envelope(raw)


@settings(max_examples=100)
@given(st.integers(0, 8 * len(PROPER[2]) - 1))
def test_a_flipped_bit_leaves_bytes_that_are_divided_or_refused(bit: int) -> None:
    raw = bytearray(PROPER[2])
    raw[bit // 8] ^= 1 << bit % 8
    try:
        found = divided(bytes(raw) + PROPER[0])
    except EnvelopeError as error:
        assert error.code in BY_CODE  # noqa: PT017
    else:
        assert (bytes(raw) + PROPER[0]).startswith(b"".join(piece for _, piece in found))
        with pytest.raises(EnvelopeError):
            open_envelope(found[0][1])


# ------------------------------------------------------------------------------------------------ bounded reading


def announcing(payload: int, *, head: int = 0x5B) -> bytes:
    """Return the heads of a record whose payload is said to have a length."""
    width = {0x5A: 4, 0x5B: 8}[head]
    protected = PROPER[0][2 : PROPER[0].index(b"\xa0\x58")]
    return b"\xd2\x84" + protected + b"\xa0" + bytes((head,)) + payload.to_bytes(width, "big")


OVERHEAD = len(announcing(0, head=0x5A)) + 66


@pytest.mark.parametrize(
    ("payload", "head"),
    [(LIMIT - OVERHEAD + 1, 0x5A), (LIMIT, 0x5A), (2**32 - 1, 0x5A), (LIMIT, 0x5B), (2**63, 0x5B), (2**64 - 1, 0x5B)],
)
def test_a_record_that_is_announced_as_too_large_is_refused_unread(payload: int, head: int) -> None:
    file = Endless(announcing(payload, head=head), 1 << 30)
    with pytest.raises(EnvelopeError) as caught:
        list(divide(file))
    assert caught.value.code == "size.envelope"
    assert file.taken <= 1 << 18


def test_records_before_one_that_is_too_large_are_given_first() -> None:
    file = Endless(PROPER[0] + announcing(LIMIT), 1 << 30)
    records = divide(file)
    assert next(records) == (0, PROPER[0])
    with pytest.raises(EnvelopeError, match=r"size\.envelope"):
        next(records)
    assert file.taken <= 1 << 18


def test_the_largest_record_is_read_and_one_byte_more_is_not() -> None:
    payload = LIMIT - OVERHEAD
    whole = announcing(payload, head=0x5A) + bytes(payload) + b"\x58\x40" + bytes(64)
    assert divided(whole + PROPER[0]) == [(0, whole), (LIMIT, PROPER[0])]
    larger = announcing(payload + 1, head=0x5A) + bytes(payload + 1) + b"\x58\x40" + bytes(64)
    with pytest.raises(EnvelopeError, match=r"size\.envelope"):
        divided(larger)


@pytest.mark.parametrize(
    "head", [b"", b"\xd2", b"\xd2\x84", b"\xff" * 9, PROPER[0], b"\xd2\x84\x58\x50", b"\x9f", b"{"]
)
def test_of_a_gibibyte_that_is_no_thread_little_is_read(head: bytes) -> None:
    file = Endless(head, 1 << 30)
    found = list(itertools.islice(divide(file), 64))
    assert file.taken <= 1_400_000
    assert len(found) < 64, "the bytes are divided on and on, though nothing in them is a record"
    assert all(len(raw) <= LIMIT for _, raw in found)


def test_no_more_is_held_of_a_long_stream_than_a_few_records() -> None:
    file = Endless(b"", 0)
    file._head = PROPER[2] * 20_000
    file._size = len(file._head)
    ahead = 0
    for offset, raw in divide(file):
        ahead = max(ahead, file.taken - offset - len(raw))
    assert file.taken == file._size
    assert ahead <= 1 << 19


@pytest.mark.parametrize("place", ["missing.thread", ".", "missing/some.thread", "n" * 300, "nul\0.thread"])
def test_a_file_that_cannot_be_read_is_refused_under_its_name(tmp_path: Path, place: str) -> None:
    with pytest.raises(EnvelopeError) as caught:
        list(read_records(tmp_path / place))
    assert caught.value.code == "file.unreadable"
    assert caught.value.text.startswith(f"{tmp_path / place}: ")


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="there is no file here that opens and does not read")
def test_a_file_that_opens_but_does_not_read_is_refused() -> None:
    with pytest.raises(EnvelopeError, match=r"file\.unreadable"):
        list(read_records("/proc/self/mem"))


def test_a_file_is_closed_although_its_reader_stops_early(tmp_path: Path) -> None:
    path = tmp_path / "some.thread"
    path.write_bytes(b"".join(PROPER))
    records = read_records(path)
    next(records)
    records.close()  # type: ignore[attr-defined]
    assert not any(str(path) == os.readlink(link) for link in _descriptors())


def _descriptors() -> Iterator[str]:
    for name in os.listdir("/proc/self/fd") if Path("/proc/self/fd").exists() else ():
        with contextlib.suppress(OSError):
            os.readlink(f"/proc/self/fd/{name}")
            yield f"/proc/self/fd/{name}"


# ------------------------------------------------------------------------------------------------------- writing


def left(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


def test_what_is_written_reads_back(tmp_path: Path) -> None:
    write_records(tmp_path / "some.thread", iter(PROPER))
    assert [raw for _, raw in read_records(tmp_path / "some.thread")] == PROPER
    assert left(tmp_path) == ["some.thread"]


def test_an_existing_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "some.thread"
    path.write_bytes(b"x" * 100_000)
    with path.open("rb") as before:
        write_records(path, PROPER[:1])
        assert before.read() == b"x" * 100_000
    assert path.read_bytes() == PROPER[0]


def test_an_existing_file_is_refused_where_it_must_not_be_replaced(tmp_path: Path) -> None:
    path = tmp_path / "some.thread"
    path.write_bytes(b"before")
    with pytest.raises(EnvelopeError) as caught:
        write_records(path, PROPER, replace=False)
    assert caught.value.code == "file.unreadable"
    assert "nothing was written" in caught.value.text
    assert path.read_bytes() == b"before"
    assert left(tmp_path) == ["some.thread"]


def test_a_dangling_link_is_not_followed_where_nothing_must_be_replaced(tmp_path: Path) -> None:
    (tmp_path / "some.thread").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(EnvelopeError):
        write_records(tmp_path / "some.thread", PROPER, replace=False)
    assert left(tmp_path) == ["some.thread"]


def test_of_several_that_write_one_new_file_exactly_one_wins(tmp_path: Path) -> None:
    path = tmp_path / "some.thread"
    won: list[int] = []
    barrier = threading.Barrier(8)

    def write(number: int) -> None:
        barrier.wait()
        with contextlib.suppress(EnvelopeError):
            write_records(path, [bytes([number]) * 1000], replace=False)
            won.append(number)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert path.read_bytes() == bytes(won) * 1000
    assert left(tmp_path) == ["some.thread"]


@pytest.mark.parametrize("replace", [True, False])
@pytest.mark.parametrize("place", ["missing/some.thread", "folder", "n" * 300, "nul\0.thread", "plain/some.thread"])
def test_a_file_that_cannot_be_written_is_refused_and_nothing_is_left(
    tmp_path: Path, place: str, replace: bool
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "plain").write_bytes(b"before")
    with pytest.raises(EnvelopeError) as caught:
        write_records(tmp_path / place, PROPER, replace=replace)
    assert caught.value.code == "file.unreadable"
    assert left(tmp_path) == ["folder", "plain"]
    assert left(tmp_path / "folder") == []
    assert (tmp_path / "plain").read_bytes() == b"before"


@pytest.mark.parametrize("place", ["", ".", "/", ".."])
def test_a_path_that_names_no_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with pytest.raises(EnvelopeError) as caught:
        write_records(place, PROPER)
    assert caught.value.code == "file.unreadable"
    assert left(tmp_path) == ["here"]
    assert left(tmp_path / "here") == []


def test_records_that_fail_half_way_leave_what_stood_there(tmp_path: Path) -> None:
    path = tmp_path / "some.thread"
    path.write_bytes(b"before")

    def records() -> Iterator[bytes]:
        yield PROPER[4]
        raise EnvelopeError("writer.misuse", "no more")

    with pytest.raises(EnvelopeError, match=r"writer\.misuse"):
        write_records(path, records())
    assert path.read_bytes() == b"before"
    assert left(tmp_path) == ["some.thread"]


FULL = """
import sys
from envelope.errors import EnvelopeError
from envelope.threadfile import write_records
try:
    write_records(sys.argv[1], [bytes(40_000)] * 5, replace=sys.argv[2] == "replace")
except EnvelopeError as error:
    sys.exit(f"{error.code}: {error.text}")
"""


def write_in_another_process(path: Path, how: str, most: int | None) -> subprocess.CompletedProcess[str]:
    def limit() -> None:
        if most is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))

    command = [sys.executable, "-c", FULL, str(path), how]
    return subprocess.run(command, cwd=ROOT, preexec_fn=limit, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("how", ["replace", "new"])
def test_where_a_file_may_not_grow_nothing_is_written_and_the_old_one_stands(tmp_path: Path, how: str) -> None:
    path = tmp_path / "some.thread"
    if how == "replace":
        path.write_bytes(b"before")
    done = write_in_another_process(path, how, 50_000)
    assert (done.returncode, done.stderr.split(":")[0]) == (1, "file.unreadable"), done.stderr
    assert "nothing was written" in done.stderr
    assert left(tmp_path) == (["some.thread"] if how == "replace" else [])
    assert how == "new" or path.read_bytes() == b"before"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("a disk of one's own can only be mounted as root")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.parametrize("how", ["replace", "new"])
def test_on_a_full_disk_nothing_is_written_and_the_old_file_stands(small_disk: Path, how: str) -> None:
    path = small_disk / "some.thread"
    if how == "replace":
        path.write_bytes(b"before")
    done = write_in_another_process(path, how, None)
    assert (done.returncode, done.stderr.split(":")[0]) == (1, "file.unreadable"), done.stderr
    assert "No space left on device" in done.stderr
    assert left(small_disk) == (["some.thread"] if how == "replace" else [])
    assert how == "new" or path.read_bytes() == b"before"


def test_a_new_file_has_the_permissions_that_were_asked_for(tmp_path: Path) -> None:
    write_whole(tmp_path / "secret", [b"x"], replace=False, mode=0o600)
    assert stat.S_IMODE((tmp_path / "secret").stat().st_mode) == 0o600
