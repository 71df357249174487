"""Gated steps of a run in memory, against the cost of the signatures that they cannot do without."""

import statistics
import time

import anyio
from nacl.signing import SigningKey

from envelope import Card, Identity, Message
from flow import Agent, Confirm, Machine, Plan, Step, local
from flow.bus import STEP_COMPLETED, Bus, Event
from flow.store import ThreadStore
from tests.bench.verify import PAYLOAD


def measure(steps: int, rounds: int) -> dict[str, float]:
    signatures, gated = [], []
    for _ in range(rounds):
        signatures.append(three_signatures(steps))
        gated.append(anyio.run(gated_steps, steps))
    return {
        "steps": steps,
        "steps_per_s": 1 / statistics.median(gated),
        "signatures_per_step_s": statistics.median(signatures),
        "step_s": statistics.median(gated),
        "ratio_signatures": statistics.median(step / bare for step, bare in zip(gated, signatures, strict=True)),
    }


def three_signatures(times: int) -> float:
    """Return the seconds that three signatures and three verifications take with PyNaCl."""
    key = SigningKey.generate()
    public = key.verify_key
    messages = [f"{number:04}".encode() + bytes(400) for number in range(3 * times)]
    start = time.perf_counter()
    for message in messages:
        public.verify(message, key.sign(message).signature)
    return (time.perf_counter() - start) / times


async def gated_steps(steps: int, store: ThreadStore | None = None) -> float:
    """Return the seconds that a gated step takes, from the first to the last one completed."""
    author, reviewer = Identity.generate(), Identity.generate()
    rows = [(f"s{number}", "go", f"s{number + 1}") for number in range(steps)]
    plan = Plan([Step(f"step-{number}", target=f"s{number + 1}", payload=PAYLOAD) for number in range(steps)])
    agent = Agent(author, Card.issue(author, name="author", capabilities=["bench"]), plan)
    completed: list[float] = []
    bus = Bus()

    def note(event: Event) -> None:
        completed.append(time.perf_counter())

    def restate(message: Message) -> str:
        return f"I agree to {message.id}"

    def judge(message: object, ack: object) -> Confirm:
        return Confirm()

    bus.subscribe(note, STEP_COMPLETED)
    peers = {"reviewer": local(reviewer, restate)}
    await agent.run("bench", Machine("s0", rows), {}, peers=peers, judge=judge, store=store, bus=bus)
    return (completed[-1] - completed[0]) / (steps - 1)
