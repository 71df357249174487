"""What the agent document beside this module names: taking stock of a folder, and reviewing that."""

import json
from pathlib import Path
from typing import Any

from envelope import Ack, Message, address, address_text, file_address
from flow import AgentFile, Call, Confirm, Correct, Declined, Draft, Job

Record = dict[str, Any]

LIST = "application/x-ndjson"


# The agent


def list_files(record: Record, call: Call) -> Record:
    """Note which files there are."""
    folder = Path(record["folder"])
    files = [path for path in folder.rglob("*") if path.is_file()]
    seen = [path for path in files if not any(part.startswith(".") for part in path.relative_to(folder).parts)]
    return {**record, "files": sorted(map(str, seen))}


def has_files(record: Record, call: Call) -> bool:
    """Is there anything to take stock of?"""
    return bool(record["files"])


def hash_files(record: Record, call: Call) -> Record:
    """Note the address of each file's bytes."""
    return {**record, "stock": {path: address_text(file_address(path)) for path in record["files"]}}


def inventory(record: Record) -> Draft:
    """Say what there is, a line of JSON for each file."""
    return Draft("\n".join(map(json.dumps, record["stock"].items())), media_type=LIST)


def evidence(record: Record) -> Draft:
    """Say that the files were read, with the address of the inventory as evidence."""
    found = address(inventory(record).payload.encode())
    return Draft(
        f"I read {len(record['stock'])} files; their inventory is {address_text(found)}.",
        epistemic="verified",
        provenance={"source": "BLAKE3 of each file, read by the stocktaker", "evidence": [found]},
    )


def judge(message: Message, ack: Ack) -> Confirm | Correct:
    """Is that what I meant? The reviewer must repeat my sentence, or name the very inventory."""
    meant = _meant(message)
    return Confirm() if meant in str(ack.restatement) else Correct(f"Say that you mean: {meant}")


# The reviewer


def review(message: Message) -> str:
    """Read and hash every file of an inventory before agreeing to it; take note of anything else."""
    if message.media_type == LIST:
        for path, told in map(json.loads, str(message.payload).splitlines()):
            found = address_text(file_address(path))
            if found != told:
                raise Declined(f"{path!a} is listed as {told}, but I read {found}")
    return f"Understood and agreed: {_meant(message)}"


def _meant(message: Message) -> str:
    text = str(message.payload)
    return address_text(address(text.encode())) if message.media_type == LIST else text


registry = {
    function.__name__: function for function in (list_files, has_files, hash_files, inventory, evidence, judge, review)
}


def job() -> Job:
    """The document of this folder, bound to this module."""
    return AgentFile.read(Path(__file__).with_name("agent.toml")).bind(registry)
