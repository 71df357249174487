"""Signed agent messages: envelopes, threads, and the verifier that needs one file and the keys you trust."""

from envelope.audit import Verifier, verify_file, verify_thread
from envelope.cards import Card
from envelope.cose import Envelope, address, address_text, open_envelope, parse_address, seal_envelope, sign_record
from envelope.errors import EnvelopeError
from envelope.keys import Identity, PublicKey, did_key, parse_did
from envelope.records import (
    Ack,
    Blob,
    CardBody,
    Limits,
    Member,
    Message,
    Open,
    Provenance,
    Record,
    Revocation,
    Roster,
    Ruling,
    Seal,
    Settle,
    Settled,
    Witness,
)
from envelope.thread import Thread
from envelope.threadfile import file_address
from envelope.trust import TrustedKey, TrustStore
from envelope.verdict import Finding, ThreadVerdict
from envelope.writer import ThreadWriter

__all__ = [
    "Ack",
    "Blob",
    "Card",
    "CardBody",
    "Envelope",
    "EnvelopeError",
    "Finding",
    "Identity",
    "Limits",
    "Member",
    "Message",
    "Open",
    "Provenance",
    "PublicKey",
    "Record",
    "Revocation",
    "Roster",
    "Ruling",
    "Seal",
    "Settle",
    "Settled",
    "Thread",
    "ThreadVerdict",
    "ThreadWriter",
    "TrustStore",
    "TrustedKey",
    "Verifier",
    "Witness",
    "address",
    "address_text",
    "did_key",
    "file_address",
    "open_envelope",
    "parse_address",
    "parse_did",
    "seal_envelope",
    "sign_record",
    "verify_file",
    "verify_thread",
]
