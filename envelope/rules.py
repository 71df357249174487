"""The registry of the protocol's rules.

Every refusal and every finding of the verifier carries a code of this table, and through it a number, a stage and an
effect. `spec/rules.toml` publishes the same table; a test holds the two together. Numbers read `stage.ordinal`, the
anchors name the section of `spec/protocol.md` that states the rule.
"""

from dataclasses import dataclass
from typing import Final, Literal

Effect = Literal["invalid", "unverifiable", "trust", "outcome", "incomplete", "note"]

STAGES: Final = (
    "size", "cbor", "cose", "header", "key", "signature", "body",
    "chain", "roster", "receipts", "settle", "trust", "plan", "evidence",
)  # fmt: skip
"""The verifier's stages, cheapest first; a record's code is that of its earliest failing stage."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule: its number, the stage that checks it, its stable code, what breaking it means, and its sentence."""

    number: str
    stage: str
    code: str
    effect: Effect
    anchor: str
    text: str


def _table(stage: str, anchor: str, *rows: tuple[str, str] | tuple[str, str, Effect]) -> list[Rule]:
    base = STAGES.index(stage) + 1
    return [
        Rule(f"{base}.{n}", stage, row[0], row[2] if len(row) == 3 else "invalid", anchor, row[1])
        for n, row in enumerate(rows, start=1)
    ]


RULES: Final[tuple[Rule, ...]] = (
    *_table(
        "size", "size",
        ("size.envelope", "An envelope is at most 1,048,576 bytes."),
        ("size.header", "A protected header is at most 128 bytes."),
    ),
    *_table(
        "cbor", "cbor",
        ("file.torn", "An envelope's bytes do not end inside it."),
        ("cbor.truncated", "A data item does not end before it is complete."),
        ("cbor.trailing", "Nothing follows the data item."),
        ("cbor.reserved", "Additional information 28 to 30, and a break outside an indefinite item, are not used."),
        ("cbor.indefinite", "Lengths are definite."),
        ("cbor.shortest", "Integers and lengths are in their shortest form."),
        ("cbor.integer", "Integers lie between -(2^53-1) and 2^53-1."),
        ("cbor.float", "There are no floats."),
        ("cbor.simple", "There are no simple values but true and false."),
        ("cbor.tag", "There are no tags but the outer 18."),
        ("cbor.utf8", "Text is valid UTF-8."),
        ("cbor.key_type", "Map keys are text; in the protected header, unsigned integers."),
        ("cbor.duplicate_key", "A map holds a key once."),
        ("cbor.key_order", "Map keys ascend bytewise by their encoding."),
        ("cbor.depth", "Containers nest at most 8 deep."),
        ("cbor.items", "An encoding holds at most 16,384 data items."),
    ),
    *_table(
        "cose", "cose",
        ("cose.tag", "An envelope is a COSE_Sign1 with tag 18."),
        ("cose.shape", "It is an array of a byte string, a map, a byte string and a byte string."),
        ("cose.unprotected", "Its unprotected header is the empty map."),
    ),
    *_table(
        "header", "header",
        ("header.labels", "The protected header is a map of exactly the labels 1, 4 and 16."),
        ("header.alg_eddsa", "The algorithm is not the polymorphic EdDSA (-8)."),
        ("header.alg", "The algorithm is Ed25519 (-19)."),
        ("header.kid", "The key id is the signer's raw 32-byte public key."),
        ("header.typ", "The type is application/vnd.envelope.<kind>+cose."),
    ),
    *_table(
        "key", "ed25519",
        ("key.length", "A public key is 32 bytes."),
        ("key.small_order", "A public key is none of the 14 encodings of a point of small order."),
        ("key.noncanonical", "A public key's y coordinate is less than p."),
    ),
    *_table(
        "signature", "ed25519",
        ("signature.length", "A signature is 64 bytes."),
        ("signature.scalar", "S is less than the group order L."),
        ("signature.small_order", "R is none of the 14 encodings of a point of small order."),
        ("signature.noncanonical", "R's y coordinate is less than p."),
        ("signature.invalid", "The cofactorless Ed25519 equation holds for the Sig_structure."),
    ),
    *_table(
        "body", "bodies",
        ("body.kind", "The kind is one of this version.", "unverifiable"),
        ("body.version", "The body's version is 1.", "unverifiable"),
        ("body.type", "Every field has its type."),
        ("body.missing", "No required field is missing."),
        ("body.unknown", "No field is unknown."),
        ("body.value", "Numbers, byte strings and enumerations are within their range."),
        ("body.empty", "An optional list or map is absent or non-empty."),
        ("body.order", "A list of keys, capabilities or members ascends and repeats nothing."),
        ("body.name", "Ids, names, paths, capabilities, media types and extension keys keep to their grammar."),
        ("body.display", "Display names are 1 to 128 bytes without control, zero-width or direction characters."),
        ("body.blank", "Content is not blank."),
        ("body.size", "Texts and lists keep to their greatest length."),
        ("body.default", "A default is not written out."),
        ("body.fields", "Fields that belong together, or exclude each other, do so."),
        ("body.key", "A key in a body is an acceptable Ed25519 public key."),
        ("open.names", "Names of members are unique."),
        ("message.to_required", "A message that needs acknowledgements has recipients."),
        ("message.reply_required", "A challenge, retraction or escalation replies to a message."),
        ("message.verified", "The label verified names evidence."),
        ("message.hops", "The provenance chain is no longer than max_hops."),
        ("message.step", "A message with a step needs acknowledgements and is no escalation."),
        ("message.escalation_payload", "An escalation's payload is inline and at most 4,096 bytes."),
    ),
    *_table(
        "chain", "chain",
        ("chain.no_open", "A thread begins with an open."),
        ("chain.pinned", "The thread is the one that the verifier asked for."),
        ("chain.second_open", "A thread has one open."),
        ("chain.kind", "A thread holds chain records, acks and rulings only."),
        ("chain.sealed", "Nothing follows a seal."),
        ("chain.thread", "A record names the thread it stands in."),
        ("chain.repeated", "No record stands twice."),
        ("chain.fork", "No two chain records have the same predecessor."),
        ("chain.prev", "A chain record names the chain record before it."),
        ("chain.seq", "Chain records count up by one from 0."),
        ("message.id", "A message's id is unique in its thread."),
        ("message.room", "A message names the room of the open, and no room where there is none."),
        ("message.reply_to", "A reply is to an earlier message of the thread."),
        ("ack.message", "An acknowledgement is of an earlier message of the thread."),
        ("ruling.ack", "A ruling is of an acknowledgement of an unsettled message of the thread."),
    ),
    *_table(
        "roster", "roster",
        ("roster.owner", "The opener is one of the members, as moderator."),
        ("roster.stranger", "A record's signer is a member at its place."),
        ("roster.role", "A record's signer has a role that may sign it."),
        ("roster.to", "Recipients are members at the message's place, its author not among them."),
        ("roster.unable", "Those who must acknowledge are able to at the message's place."),
        ("roster.present", "Whom a record admits is not present."),
        ("roster.absent", "Whose role a record changes, or whom it removes, is present."),
        ("roster.same_role", "A change of role is to another role."),
        ("roster.leave", "Only the signer's own key leaves."),
        ("roster.name", "A name is never given to two keys of a thread."),
        ("roster.moderator", "A thread is never without a moderator."),
        ("step.owner", "Steps are the owner's."),
        ("ack.recipient", "An acknowledgement is by a recipient of its message."),
        ("ruling.author", "A ruling is by the author of the acknowledged message."),
    ),
    *_table(
        "receipts", "receipts",
        ("receipts.committed", "A chain record lists exactly the receipts that stand before it, in their order."),
        ("receipts.many", "At most 4,096 receipts stand between two chain records."),
        ("receipts.repeated", "No receipt stands twice."),
        ("ack.settled", "A settled or retracted message takes no acknowledgement."),
        ("ack.declined", "A decline is final: nothing by that recipient follows it for that message."),
        ("ack.after", "A later acknowledgement names the correction it answers; a first one names none."),
        ("ack.rounds", "A recipient acknowledges a message at most 16 times."),
        ("ruling.declined", "A decline takes no ruling."),
        ("ruling.repeated", "An acknowledgement takes one ruling."),
    ),
    *_table(
        "settle", "settle",
        ("settle.unknown", "What is settled is an earlier message of the thread."),
        ("settle.author", "A message is settled by its author."),
        ("settle.repeated", "A message is settled once."),
        ("settle.retracted", "A retracted message is settled failed or not at all."),
        ("settle.unacknowledged", "Succeeded demands every recipient's last ack accepted and confirmed."),
        ("settle.approved", "Approved names the message's escalation, accepted and confirmed throughout, not failed."),
        ("step.repeated", "A step's path occurs once in a thread."),
        ("retract.author", "A message is retracted by its author."),
        ("retract.settled", "A settled message is not retracted."),
        ("retract.target", "A step's message, an escalation and a retraction are not retracted, nothing twice."),
        ("retract.declined", "A declined message is not retracted."),
        ("escalate.author", "A message is escalated by its author."),
        ("escalate.target", "What is escalated needs acknowledgements and is no escalation."),
        ("escalate.late", "A settled or retracted message is not escalated."),
        ("escalate.repeated", "A message is escalated at most once."),
        ("escalate.approver", "An escalation is to approvers who held that role since before the message."),
        ("escalate.recipient", "An escalation is to none of the message's recipients."),
        ("limit.bytes", "The owner's payloads keep to the thread's limit of bytes."),
        ("limit.messages", "The owner's messages keep to the thread's limit of messages."),
        ("seal.unacknowledged", "Completed demands each of the owner's requests cleared and settled, or retracted."),
        ("seal.open_request", "Another member's request was left unacknowledged.", "outcome"),
        ("seal.open_challenge", "A challenge was left unanswered.", "note"),
        ("message.approved", "People approved a message in place of its recipients.", "note"),
        ("message.declined", "A recipient, or an approver, declined a message.", "note"),
        ("time.backwards", "A chain record says it was sent more than 5 minutes before its predecessor.", "note"),
        ("time.future", "A record says it was sent more than 5 minutes after the time of the verification.", "note"),
    ),
    *_table(
        "trust", "trust",
        ("trust.none", "The verifier trusts no keys.", "trust"),
        ("trust.unknown", "A signer's key is not known to the verifier.", "trust"),
        ("trust.role", "A signer's key is known to the verifier, but in a role that does not sign threads.", "trust"),
        ("trust.human", "An approver's key is not known to the verifier as a human's.", "trust"),
        ("tip.missing", "A record known to exist is missing from the thread.", "incomplete"),
    ),
    *_table(
        "plan", "plan",
        ("plan.unchecked", "The thread names a plan whose document was not given.", "note"),
    ),
)  # fmt: skip

BY_CODE: Final[dict[str, Rule]] = {rule.code: rule for rule in RULES}
