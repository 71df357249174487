"""Two agents sign off files: an example to copy.

The release agent takes stock of some files, records their addresses as evidence, and asks the reviewer; the reviewer
reads and hashes the files itself before it agrees, or declines. Each keeps its own key, and all they share is what they
tell each other. The thread that remains can be verified by anybody who trusts the two keys.
"""

import json
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envelope import Card, Identity, Message, TrustedKey, TrustStore, address, address_text, file_address
from flow import (
    Agent,
    Bus,
    Call,
    Confirm,
    Correct,
    Declined,
    Draft,
    Event,
    Machine,
    Plan,
    Rejected,
    Step,
    ThreadCopy,
    Transition,
    local,
)
from flow.bus import STEP_COMPLETED

Record = dict[str, Any]

LIST = "application/x-ndjson"


@dataclass(frozen=True, slots=True)
class Signoff:
    """What the demo made: the thread, the two cards, the keys to trust, and the reason if it was rejected."""

    thread: ThreadCopy
    cards: tuple[Card, Card]
    trust: TrustStore
    rejected: str | None


# The release agent


def take_stock(record: Record, call: Call) -> Record:
    """Note the size of each file."""
    return {**record, "files": [{"path": path, "bytes": Path(path).stat().st_size} for path in record["paths"]]}


def hash_files(record: Record, call: Call) -> Record:
    """Note the address of each file's bytes."""
    files = [{**file, "address": address_text(file_address(file["path"]))} for file in record["files"]]
    return {**record, "files": files}


def manifest(record: Record) -> str:
    """Return the list of files, a line of JSON each, which is ASCII whatever their names are."""
    return "\n".join(json.dumps(file) for file in record["files"])


def inventory(record: Record) -> Draft:
    """Say which files there are to be released."""
    total = sum(Path(path).stat().st_size for path in record["paths"])
    return Draft(f"I take stock of {len(record['paths'])} files, {total} bytes, to release them.")


def evidence(record: Record) -> Draft:
    """Say what the files are, with their addresses as evidence: one by one where they fit, else that of the list."""
    addresses = [bytes.fromhex(file["address"][3:]) for file in record["files"]]
    if not 1 <= len(addresses) <= 64:
        addresses = [address(manifest(record).encode())]
    return Draft(
        manifest(record),
        media_type=LIST,
        epistemic="verified",
        provenance={"source": "BLAKE3 of each file, read by the release agent", "evidence": addresses},
    )


def review(record: Record) -> Draft:
    """Ask for a review of the files."""
    return Draft(manifest(record), media_type=LIST)


def release(record: Record) -> Draft:
    """Ask for the release."""
    return Draft(f"Release {len(record['files'])} files as listed in {list_address(manifest(record))}.")


def judge(message: Message, ack: Any) -> Confirm | Correct:
    """Is that what I meant? The reviewer must name the very list, or repeat the sentence."""
    said = list_address(message.payload) if message.media_type == LIST else message.payload
    return Confirm() if said in ack.restatement else Correct(f"Say that you mean {said}")


def list_address(text: Any) -> str:
    """Return the address of a list of files."""
    return address_text(address(str(text).encode()))


# The reviewer


def restate(message: Message) -> str:
    """Read and hash every listed file before agreeing to a list; repeat any other sentence in own words."""
    if message.media_type != LIST:
        return f"I understand and agree: {message.payload}"
    files = [json.loads(line) for line in str(message.payload).splitlines()]
    for file in files:
        found = address_text(file_address(file["path"]))
        if found != file["address"]:
            raise Declined(f"{file['path']!a} is listed as {file['address']}, but I read {found}")
    return f"I read {len(files)} files myself; each is as listed in {list_address(message.payload)}"


# The two together


async def sign_off(paths: Iterable[Path], *, tamper: Path | None = None) -> Signoff:
    """Have a release agent and a reviewer sign off some files.

    Args:
        paths: the files.
        tamper: a file to change between evidence and review, which the reviewer should notice.
    """
    author, reviewer = Identity.generate(), Identity.generate()
    cards = (
        Card.issue(author, name="releaser", capabilities=["release"]),
        Card.issue(reviewer, name="reviewer", capabilities=["review"]),
    )
    machine = Machine(
        "draft",
        [
            Transition("draft", "list", "listed", on_entry=take_stock),
            Transition("listed", "hash", "evidenced", on_entry=hash_files),
            ("evidenced", "review", "reviewed"),
            ("reviewed", "release", "released"),
        ],
    )
    plan = Plan(
        [
            Step("inventory", target="listed", payload_from=inventory),
            Step("evidence", target="evidenced", gate="after", payload_from=evidence, needs=["inventory"]),
            Step("review", target="reviewed", payload_from=review, capability="review", needs=["evidence"]),
            Step("release", target="released", payload_from=release, needs=["review"]),
        ]
    )
    bus = Bus()

    def meddle(event: Event) -> None:
        if tamper is not None and event.data["outcome"].step == "evidence":
            with tamper.open("ab") as file:
                file.write(b"tampered\n")

    bus.subscribe(meddle, STEP_COMPLETED)
    trust = TrustStore(
        {author.public_key: TrustedKey("releaser", "agent"), reviewer.public_key: TrustedKey("reviewer", "agent")}
    )
    peers = {"reviewer": local(reviewer, restate)}
    record = {"paths": [str(path) for path in paths]}
    try:
        run = await Agent(author, cards[0], plan).run("release", machine, record, peers=peers, judge=judge, bus=bus)
    except Rejected as rejected:
        return Signoff(rejected.thread, cards, trust, str(rejected.args[0]))
    return Signoff(run.thread, cards, trust, None)


def files_below(paths: Iterable[Path]) -> list[Path]:
    """Return the files among `paths` and below the folders among them, sorted, without hidden ones below folders."""
    found: set[Path] = set()
    for path in paths:
        if path.is_dir():
            below = (file for file in path.rglob("*") if file.is_file())
            found |= {file for file in below if not any(part.startswith(".") for part in file.relative_to(path).parts)}
        else:
            found.add(path)
    return sorted(found)


def copied(paths: Iterable[Path], folder: Path) -> list[Path]:
    """Copy files to a folder, numbered, so that the copies can be meddled with."""
    folder.mkdir(parents=True, exist_ok=True)
    copies = []
    for number, path in enumerate(paths):
        copies.append(folder / f"{number:04}-{path.name}")
        shutil.copyfile(path, copies[-1])
    return copies
