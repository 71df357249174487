"""Who takes part in what an agent document describes: the agent with its key and card, peers and approvers."""

from collections.abc import Callable
from inspect import iscoroutine
from pathlib import Path
from typing import Any, Final

from envelope import Card, EnvelopeError, Identity, PublicKey, did_key, parse_did
from envelope.cards import read_proofs
from flow.agentcode import Code, Function
from flow.agentfaults import Faults, shown
from flow.agenttables import AgentTables, OwnerTable, PeerTable
from flow.endings import words
from flow.peers import Delivery, Peer
from flow.tomlplaces import KeyPath
from flow.transport import local

Load = Callable[[Path], Identity]
"""Opens a key file."""


class Members:
    """Reads keys and cards, and makes peers; each key is read once, and no two members may have the same.

    Args:
        tables: the document.
        code: its code.
        faults: where is noted what cannot be read.
        load: opens a key file.
        connecting: whether the program's own functions are called that connect to peers elsewhere; if not, those peers
            have their keys and nothing else.
    """

    def __init__(self, tables: AgentTables, code: Code, faults: Faults, load: Load, *, connecting: bool) -> None:
        self._tables = tables
        self._code = code
        self._faults = faults
        self._load = load
        self._connecting = connecting
        self._folder: Final = faults.file.parent
        self._bearers: Final[dict[PublicKey, str]] = {}

    def owner(self) -> tuple[Identity, Card] | None:
        """The agent's identity and card."""
        table = self._tables.agent
        identity = self._identity(table.key, ("agent", "key"))
        if identity is None:
            return None
        self._bears(identity.public_key, "the agent itself", ("agent", "key"))
        card = self._issued(table, identity) if table.card is None else self._read(table, table.card, identity)
        return None if card is None else (identity, card)

    def peers(self) -> dict[str, Peer]:
        """The peers that can be made."""
        made = {name: self._peer(table, ("peers", name)) for name, table in self._tables.peers.items()}
        for name, peer in made.items():
            if peer is not None:
                self._bears(peer.key, f"peer {name!r}", ("peers", name))
        return {name: peer for name, peer in made.items() if peer is not None}

    def approvers(self) -> dict[str, PublicKey]:
        """The approvers' keys."""
        keys = {}
        for name, table in self._tables.approvers.items():
            where = ("approvers", name)
            if name in self._tables.peers:
                self._faults.note_field("agent.field", where, "a peer has this name too: rename one")
            if (key := self._key(table.key, (*where, "key"))) is not None:
                self._bears(key, f"approver {name!r}", where)
                keys[name] = key
        return keys

    def _peer(self, table: PeerTable, where: KeyPath) -> Peer | None:
        handler = None if table.handler is None else self._code.found(table.handler, (*where, "handler"))
        connect = None if table.connect is None else self._code.found(table.connect, (*where, "connect"))
        key = None if table.key is None else self._key(table.key, (*where, "key"))
        if handler and table.key_file and not connect:
            return self._here(handler, table.key_file, key, where)
        if connect and table.key and not (handler or table.key_file):
            return None if key is None else self._there(connect, key, (*where, "connect"))
        text = "give handler and key_file for a peer in this process, or connect and key for one elsewhere"
        self._faults.note_field("agent.field", where, text)
        return None

    def _here(self, handler: Function, file: str, key: PublicKey | None, where: KeyPath) -> Peer | None:
        identity = self._identity(file, (*where, "key_file"))
        if identity is None:
            return None
        if key not in (None, identity.public_key):
            text = f"{file} is the key file of {identity.did}: give that, or leave key out"
            self._faults.note_field("agent.key", (*where, "key"), text)
        try:
            return local(identity, handler)
        except (TypeError, ValueError):
            text = "nothing tells what it takes: put a def restate(message) there"
            self._faults.note_field("agent.name", (*where, "handler"), text)
            return None

    def _there(self, connect: Function, key: PublicKey, where: KeyPath) -> Peer | None:
        if not self._connecting or self._faults.errors:
            return _Elsewhere(key)
        try:
            peer: Any = connect(key)
            fits = callable(getattr(peer, "ack", None)) and peer.key == key
        except Exception as error:
            self._faults.note_field("agent.peer", where, f"{type(error).__name__}: {shown(words(error))}")
            return None
        if iscoroutine(peer):
            peer.close()
        if not fits:
            text = f"it returned a {type(peer).__name__}: return a Peer whose key is {did_key(key)}"
            self._faults.note_field("agent.peer", where, text)
            return None
        found: Peer = peer
        return found

    def _issued(self, table: OwnerTable, identity: Identity) -> Card | None:
        for field in ("name", "capabilities"):
            if not getattr(table, field):
                self._faults.note_field("agent.field", ("agent", field), "it is missing: say it, or give a card")
        if not (table.name and table.capabilities):
            return None
        told: dict[str, Any] = {} if table.description is None else {"description": table.description}
        try:
            return Card.issue(identity, name=table.name, capabilities=table.capabilities, **told)
        except EnvelopeError as error:
            self._faults.note_field("agent.card", ("agent",), f"no card can be signed: {error.text}")
            return None

    def _read(self, table: OwnerTable, file: str, identity: Identity) -> Card | None:
        where: KeyPath = ("agent", "card")
        try:
            proofs, _ = read_proofs(self._folder / file)
        except EnvelopeError as error:
            self._faults.note_field("agent.card", where, error.text)
            return None
        cards = [Card(proof) for proof in proofs if proof.kind == "card"]
        own = [card for card in cards if card.key == identity.public_key]
        if len(own) != 1:
            text = f"{file} has {len(own)} cards of {identity.did}: give a file with one"
            self._faults.note_field("agent.card", where, text)
            return None
        for field, says in (("name", own[0].name), ("capabilities", own[0].capabilities)):
            given = getattr(table, field)
            if given and (tuple(sorted(set(given))) if field == "capabilities" else given) != says:
                text = f"the card says {shown(says)}: say the same, or leave it out"
                self._faults.note_field("agent.card", ("agent", field), text)
        if table.description is not None:
            text = "the card says it: leave it out"
            self._faults.note_field("agent.card", ("agent", "description"), text)
        return own[0]

    def _identity(self, file: str, where: KeyPath) -> Identity | None:
        try:
            return self._load(self._folder / file)
        except EnvelopeError as error:
            hint = ": give a key file, as `envelope keygen` makes it" if error.code == "key.file" else ""
            self._faults.note_field("agent.key", where, f"{error.text}{hint}")
            return None

    def _key(self, did: str, where: KeyPath) -> PublicKey | None:
        try:
            return parse_did(did)
        except EnvelopeError as error:
            self._faults.note_field("agent.key", where, error.text)
            return None

    def _bears(self, key: PublicKey, bearer: str, where: KeyPath) -> None:
        other = self._bearers.setdefault(key, bearer)
        if other != bearer:
            self._faults.note_field("agent.key", where, f"{bearer} has the key of {other}: each member has its own")


class _Elsewhere:
    """A peer that nobody connected to: its key is known, and it answers nothing."""

    def __init__(self, key: PublicKey) -> None:
        self.key: Final = key

    async def ack(self, delivery: Delivery) -> Any:
        raise NotImplementedError("bind the document to connect to its peers")
