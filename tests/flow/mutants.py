"""For each rule of spec/flow.md what breaks it: a text of the code, and another in its place.

`python -m tests.mutants flow` tries them all. Where a rule says several things, the mutant takes the one that would be
missed most.
"""

from tests.mutants import Mutant, Table

MUTANTS: Table = {
    "M1": Mutant("flow/machine.py", "if not self.rows:", "if False:"),
    "M2": Mutant(
        "flow/machine.py", "if not isinstance(name, str) or not NAME.fullmatch(name):", "if not isinstance(name, str):"
    ),
    "M3": Mutant("flow/machine.py", "if row.source == row.target:", "if False:"),
    "M4": Mutant("flow/machine.py", "if (row.source, row.trigger) in seen:", "if False:"),
    "M5": Mutant("flow/machine.py", "if row.source not in reached:", "if False:"),
    "M6": Mutant("flow/machine.py", "(*self.rows_to(row.source, row.target), row)", "(row,)"),
    "M7": Mutant(
        "flow/machine.py", "await _called(action, fired, call(slot))", "await _called(action, record, call(slot))"
    ),
    "M8": Mutant("flow/machine.py", "function(deepcopy(record), call)", "function(record, call)"),
    "M9": Mutant(
        "flow/machine.py",
        "        for slot, action in actions:\n            if action is not None:\n",
        "        for slot, action in reversed(actions):\n            if action is not None:\n",
    ),
    "M10": Mutant("flow/machine.py", "if not isinstance(allowed, bool):", "if False:"),
    "M11": Mutant("flow/machine.py", "    if odd:\n", "    if False:\n"),
    "M12": Mutant("flow/machine.py", "if row not in self.rows_to(status, row.target):", "if False:"),
    "M13": Mutant(
        "flow/firing.py",
        "key = call_key(self._thread, shot.path, slot)",
        'key = call_key(self._thread, shot.path, "guard")',
    ),
    "M14": Mutant("flow/recording.py", "same = self._adapter is None or self._is_kept(record, text)", "same = True"),
    "P1": Mutant("flow/plan.py", '    when: When = "succeeded"\n', '    when: When = "finished"\n'),
    "P2": Mutant("flow/plan.py", "if step.id in self._steps:", "if False:"),
    "P3": Mutant(
        "flow/plan.py",
        "            if name in seen:\n                raise self._error(field,",
        "            if False:\n                raise self._error(field,",
    ),
    "P4": Mutant("flow/plan.py", "if len(order) < len(units):", "if False:"),
    "P5": Mutant(
        "flow/plan.py",
        "if isinstance(given, str) or not isinstance(given, Iterable):\n            raise self._error(",
        "if not isinstance(given, Iterable):\n            raise self._error(",
    ),
    "P6": Mutant("flow/plan.py", "if not self.steps:", "if False:"),
    "P7": Mutant("flow/plan.py", "if self.payload is not None and self.payload_from is not None:", "if False:"),
    "P8": Mutant("flow/plan.py", "if not _named(self.target):", "if False:"),
    "P9": Mutant("flow/plan.py", "if not _is_whole(self.corrections, 0, _MAX_CORRECTIONS):", "if False:"),
    "P10": Mutant("flow/plan.py", "if self.capability is not None and not _matches(", "if False and not _matches("),
    "P11": Mutant("flow/plan.py", "place = heapq.heappop(ready)", "place = ready.pop()"),
    "P12": Mutant(
        "flow/plan.py", "@dataclass(frozen=True, slots=True)\nclass Step:", "@dataclass(slots=True)\nclass Step:"
    ),
    "P13": Mutant("flow/plan.py", "self.payload_from(deepcopy(record))", "self.payload_from(record)"),
    "P14": Mutant(
        "flow/plan.py", "@dataclass(frozen=True, slots=True)\nclass Draft:", "@dataclass(slots=True)\nclass Draft:"
    ),
    "P15": Mutant(
        "flow/plan.py", "if self.confidence is not None and not _is_whole(self.confidence, 0, 100):", "if False:"
    ),
    "P20": Mutant("flow/plan.py", 'if self.when == "failed" and not self.needs:', "if False:"),
    "P21": Mutant("flow/plan.py", "        self._check_routes()\n", ""),
    "P22": Mutant("flow/plan.py", "if not _is_whole(self.attempts, 2, _MAX_ATTEMPTS):", "if False:"),
    "P23": Mutant(
        "flow/plan.py",
        "min(self.longest, self.delay * self.factor ** (attempt - 1))",
        "self.delay * self.factor ** (attempt - 1)",
    ),
    "P24": Mutant("flow/plan.py", "if not _is_whole(self.max, 1, _MAX_ROUNDS):", "if False:"),
    "P25": Mutant("flow/plan.py", 'for field in ("target", "route", "retry"):', 'for field in ("target", "route"):'),
    "P26": Mutant("flow/plan.py", "if self.sub.depth >= MAX_DEPTH:", "if self.sub.depth > MAX_DEPTH:"),
    "P27": Mutant(
        "flow/plan.py",
        '("to", "payload", "payload_from", "capability", "ack_timeout")',
        '("to", "payload", "payload_from", "ack_timeout")',
    ),
    "P28": Mutant("flow/plan.py", "if type(self.once) is not bool:", "if False:"),
    "P29": Mutant("flow/plan.py", "                if name in panels:\n", "                if False:\n"),
    "P30": Mutant("flow/plan.py", 'if member.gate == "after":', "if False:"),
    "P31": Mutant("flow/plan.py", "self.order: Final = _ordered(self.units)", "self.order: Final = self.units"),
    "P16": Mutant("flow/validation.py", "stuck = starts & ~goal.every", "stuck = 0"),
    "P32": Mutant("flow/validation.py", '"warning" if starts & goal.some else "error"', '"error"'),
    "P33": Mutant(
        "flow/validation.py", "may_fail = fates.caught[last] and not given.unfailed & unit", "may_fail = False"
    ),
    "P34": Mutant(
        "flow/validation.py",
        "            if fates.runs[place].possible:\n                self._check(",
        "            if True:\n                self._check(",
    ),
    "P35": Mutant("flow/validation.py", "self._one_row.get(end, 0) | end for", "self._one_row.get(end, 0) for"),
    "P17": Mutant("flow/document.py", "needs=sorted(step.needs),", "needs=list(step.needs),"),
    "P18": Mutant("flow/document.py", 'when=None if step.when == "succeeded" else step.when,', "when=step.when,"),
    "P19": Mutant("flow/document.py", "if self._bearers.setdefault(name, function) != function:", "if False:"),
    "P36": Mutant(
        "flow/document.py", "self._addresses[plan] = address(data)", 'self._addresses[plan] = address(data + b"!")'
    ),
    "P37": Mutant("flow/document.py", "            capability=step.capability,\n", ""),
    "P38": Mutant("flow/document.py", "if again != fields:", "if False:"),
    "P39": Mutant(
        "flow/document.py",
        "return self._functions.setdefault(name, function)",
        "return self._functions.setdefault(name, __import__(name))",
    ),
    "P40": Mutant("flow/planview.py", 'char if _PLAIN.fullmatch(char) else f"#{ord(char)};"', "char"),
    "L1": Mutant(
        "flow/budget.py",
        "type(value) is not int or not 0 <= value <= MAX_INTEGER",
        "type(value) is not int or not value <= MAX_INTEGER",
    ),
    "L2": Mutant(
        "flow/budget.py",
        "0 < self.max_bytes < used_bytes + more_bytes",
        "0 < self.max_bytes <= used_bytes + more_bytes",
    ),
    "L3": Mutant("flow/budget.py", "return {name: cap for name, cap in caps.items() if cap}", "return caps"),
    "L4": Mutant("flow/ledger.py", "if not self._is_low:", "if True:"),
    "C1": Mutant(
        "flow/pulse.py", "await self._clock.sleep(monitor.timeout / 3)", "await anyio.sleep(monitor.timeout / 3)"
    ),
    "C2": Mutant("flow/clock.py", "time.time_ns() // 1_000_000", "time.time_ns() // 1_000"),
    "C3": Mutant("flow/clock.py", "return anyio.move_on_after(seconds)", "return anyio.move_on_after(0)"),
    "C4": Mutant("flow/clock.py", "await anyio.sleep(max(0, seconds))", "await anyio.sleep(seconds)"),
    "C5": Mutant(
        "flow/testing/clock.py", "            timer = min(self._timers)\n", "            timer = self._timers[0]\n"
    ),
    "H1": Mutant("flow/heartbeat.py", "if not 0 < timeout < math.inf:", "if not 0 < timeout:"),
    "H2": Mutant("flow/heartbeat.py", "if not beating.strip():", "if not beating:"),
    "H3": Mutant("flow/heartbeat.py", "if at < last:", "if False:"),
    "H4": Mutant("flow/heartbeat.py", "now - last <= self.timeout", "now - last < self.timeout"),
    "H5": Mutant("flow/heartbeat.py", "return sorted(beating", "return list(beating"),
    "H6": Mutant("flow/heartbeat.py", "self._last.pop(beating, None)", "self._last.pop(beating)"),
    "H7": Mutant(
        "flow/heartbeat.py",
        "        last = self._last.get(beating, at)\n",
        "        import time\n\n        at = time.monotonic()\n        last = self._last.get(beating, at)\n",
    ),
    "H8": Mutant("flow/supervisor.py", "if silent.get(beating) != since:", "if True:"),
    "H9": Mutant("flow/supervisor.py", "if last is not None and last != since:", "if last != since:"),
    "H10": Mutant("flow/supervisor.py", "await missed(beating)", "pass"),
    "B1": Mutant("flow/bus.py", "in tuple(self._handlers.values()):", "in reversed(self._handlers.values()):"),
    "B2": Mutant("flow/bus.py", "            except Exception:\n", "            except ZeroDivisionError:\n"),
    "B3": Mutant("flow/bus.py", "            except Exception:\n", "            except BaseException:\n"),
    "B4": Mutant("flow/bus.py", "in tuple(self._handlers.values()):", "in tuple(self._handlers.values()) or (None,):"),
    "B5": Mutant("flow/bus.py", "if name not in (None, event.name):", "if False:"),
    "B6": Mutant("flow/bus.py", "MappingProxyType(dict(self.data))", "dict(self.data)"),
    "B7": Mutant("flow/bus.py", '"flow.step_completed"', '"flow.step_done"'),
    "B8": Mutant(
        "flow/cloudevents.py",
        "address_text(event.address)\n        if event.address",
        "now_ms\n        if event.address",
    ),
    "E1": Mutant("flow/errors.py", "class Cancelled(FlowError):", "class Cancelled(Exception):"),
    "E2": Mutant(
        "flow/errors.py",
        "self.status, self.record, self.step, self.thread = status, record, step, thread",
        "self.status, self.record, self.thread = status, record, thread",
    ),
    "A1": Mutant(
        "flow/agent.py", "@dataclass(frozen=True, slots=True)\nclass Agent:", "@dataclass(slots=True)\nclass Agent:"
    ),
    "A2": Mutant("flow/agent.py", "if card.key != self.identity.public_key:", "if False:"),
    "A3": Mutant("flow/agent.py", "return self.card.name", 'return "agent"'),
    "A4": Mutant(
        "flow/agent.py",
        "MemoryStore() if store is None else store",
        'globals().setdefault("_kept", MemoryStore()) if store is None else store',
    ),
    "A5": Mutant("flow/agent.py", "while name in taken or not NAME.fullmatch(name):", "while name in taken:"),
    "A6": Mutant("flow/agent.py", "        if key in names:\n", "        if False:\n"),
    "A7": Mutant("flow/agent.py", 'if unknown or (step.gate != "none" and not peers):', "if unknown:"),
    "R1": Mutant("flow/agent.py", "if not isinstance(limits, Limits):", "if False:"),
    "R2": Mutant(
        "flow/agent.py",
        'if errors := [found for found in validate(self.plan, machine) if found.severity == "error"]:',
        "if errors := []:",
    ),
    "R3": Mutant("flow/runner.py", '"limits": self._cast.limits.document() or None,', '"limits": None,'),
    "R4": Mutant("flow/store/memory.py", "if self._threads[name].made.get(_BEGINNING) != (0, content):", "if False:"),
    "R5": Mutant("flow/schedule.py", "heapq.heappop(self._ready)", "self._ready.pop()"),
    "R6": Mutant(
        "flow/performer.py",
        'await self._say(turn, drafts, "request", None)',
        'await self._say(turn, drafts, "assert", None)',
    ),
    "R7": Mutant("flow/performer.py", "            await self._afford(turn, drafts)\n", ""),
    "R8": Mutant("flow/performer.py", 'message_id = f"{step.id}#{number}"', 'message_id = f"{step.id}-{number}"'),
    "R9": Mutant("flow/performer.py", '"capability": step.capability,', '"capability": None,'),
    "R10": Mutant(
        "flow/performer.py",
        "            self.ledger.said(path, message)\n            await self.ledger.delivered(message)\n",
        "            self.ledger.said(path, message)\n",
    ),
    "R11": Mutant("flow/pulse.py", "monitor.timeout / 3", "monitor.timeout / 2"),
    "R12": Mutant(
        "flow/gate.py",
        "self._unit.wait(lambda: self._judged(ack), self._until)",
        "self._unit.wait(lambda: self._judged(ack), None)",
    ),
    "R13": Mutant(
        "flow/gate.py",
        "Delivery(self._message, self._gate.journal.records, correction, self._deadline)",
        "Delivery(self._message, self._gate.journal.records, correction, None)",
    ),
    "R14": Mutant("flow/gate.py", "if record.after != (correction.address if correction else None):", "if False:"),
    "R15": Mutant(
        "flow/gate.py",
        '            if ack.record.answer == "decline":\n                ack = await',
        '            if ack.record.answer == "decline":\n'
        "                await self._judged(ack)\n"
        "                ack = await",
    ),
    "R16": Mutant("flow/gate.py", "if not isinstance(said, Confirm | Correct):", "if False:"),
    "R17": Mutant(
        "flow/gate.py",
        "await gate.journal.receive([ack, ruling] if ruling else [ack], unit.confirmed if last else None)",
        "await gate.journal.receive([ack], None)\n"
        "                await gate.journal.receive([ruling] if ruling else [], unit.confirmed "
        "if last else None)",
    ),
    "R18": Mutant("flow/gate.py", "left = self._ask.corrections\n", "left = self._ask.corrections + 1\n"),
    "R19": Mutant(
        "flow/gate.py",
        "            except Exception:\n"
        "                await self._commit(name, peer, ack, None)\n"
        "                raise\n",
        "            except ZeroDivisionError:\n                raise\n",
    ),
    "R20": Mutant(
        "flow/performer.py",
        "        if await self._acknowledged(turn, attempt=1):\n",
        "        await self._fire(turn)\n        if await self._acknowledged(turn, attempt=1):\n",
    ),
    "R21": Mutant(
        "flow/runner.py",
        "        await self._ledger.moved(turn, self._here.status)\n        await self._ledger.tell_done(turn.paths)\n",
        "        await self._ledger.tell_done(turn.paths)\n        await self._ledger.moved(turn, self._here.status)\n",
    ),
    "R22": Mutant("flow/journal.py", "_MOST_STANDING: Final = 4096", "_MOST_STANDING: Final = 4098"),
    "R23": Mutant("flow/performer.py", "            await self._afford(turn, ())\n", ""),
    "R24": Mutant(
        "flow/turn.py",
        "            attempts = self.attempts[place] if self.attempts else None\n            word",
        '            attempts = self.attempts[place] if self.attempts and outcome != "failed" '
        "else None\n"
        "            word",
    ),
    "R25": Mutant(
        "flow/performer.py", 'settled = turn.settlements("failed", self.here.status) if fired else ()', "settled = ()"
    ),
    "R26": Mutant("flow/performer.py", '    "none": Performer._none,\n', '    "none": Performer._before,\n'),
    "R27": Mutant(
        "flow/runner.py", "if any(outcome.message for outcome in self._ledger.outcomes.values()):", "if True:"
    ),
    "R28": Mutant("flow/runner.py", "            self._pulse.forget()\n", "            pass\n"),
    "R29": Mutant(
        "envelope/cose.py",
        "    check_signature(parts.signer, parts.signature, parts.signed)\n    return _remember(Envelope(",
        "    return _remember(Envelope(",
    ),
    "R30": Mutant(
        "flow/runner.py",
        'raise await self._endings.decided(error, "failed",',
        'raise await self._endings.decided(error, "cancelled",',
    ),
    "R31": Mutant("flow/performer.py", "        if len(rows) != 1:\n", "        if not rows:\n"),
    "R32": Mutant("flow/endings.py", '"rejected", status, settled, why)', '"rejected", status, settled)'),
    "R33": Mutant(
        "flow/performer.py",
        'raise await self._decided(turn, error, "over_budget", settled)',
        'raise await self._decided(turn, error, "failed", settled)',
    ),
    "R34": Mutant(
        "flow/gate.py",
        "self._until = self._gate.clock.monotonic() + ask.timeout",
        "self._until = self._gate.clock.monotonic() + 2 * ask.timeout",
    ),
    "R35": Mutant("flow/runner.py", 'error.add_note(f"{place} of the thread', 'str(f"{place} of the thread'),
    "R36": Mutant(
        "flow/gate.py", "            if role not in _MAY_ACK\n", "            if role not in (*_MAY_ACK, None)\n"
    ),
    "R37": Mutant(
        "flow/journal.py",
        "if self._head.state != states or any(envelope.signer == mine for envelope in new):",
        "if False:",
    ),
    "R38": Mutant(
        "flow/runner.py",
        'if (verdict.integrity, verdict.completeness, verdict.outcome) != ("valid", "sealed", "completed"):',
        "if False:",
    ),
    "R39": Mutant(
        "flow/endings.py",
        "        return await self.paused(\n            AckTimeout(",
        '        return await self.decided(\n            outcome="failed", status=status, error=AckTimeout(',
    ),
    "R40": Mutant(
        "flow/pulse.py",
        "                failure.append(error)\n"
        "                if isinstance(error, anyio.get_cancelled_exc_class()):\n"
        "                    raise\n",
        "                failure.append(RuntimeError() if isinstance(error, "
        "anyio.get_cancelled_exc_class()) else error)\n",
    ),
    "R41": Mutant("flow/endings.py", 'error.add_note(f"besides: {other}")', "str(other)"),
    "R46": Mutant("flow/schedule.py", "heapq.heappush(self._ready, place)", "self._ready.insert(0, place)"),
    "R47": Mutant(
        "flow/schedule.py", '(step.when == "finished" or "skipped" not in became)', '"skipped" not in became'
    ),
    "R48": Mutant(
        "flow/runner.py",
        "settled += self._skips(turn, schedule.succeeded(turn.unit, chosen))",
        "schedule.succeeded(turn.unit, chosen)",
    ),
    "R49": Mutant("flow/runner.py", "            self._here.back(turn.before)\n", ""),
    "R50": Mutant(
        "flow/schedule.py",
        "for need in self.plan.steps if need.id in step.needs and need.id in self._failures",
        "for need in self.plan.steps[::-1] if need.id in step.needs and need.id in self._failures",
    ),
    "R51": Mutant(
        "flow/schedule.py", "if step.id not in wanted]", 'if step.id not in wanted and step.when != "failed"]'
    ),
    "R52": Mutant("flow/firing.py", "isinstance(error, GuardRefused)", "False"),
    "R53": Mutant("flow/firing.py", "            await begin(attempt)\n", ""),
    "R54": Mutant(
        "flow/firing.py",
        "        return int.from_bytes(digest",
        "        import random\n\n        return random.random() + 0 * int.from_bytes(digest",
    ),
    "R55": Mutant("flow/performer.py", "size, len(turn.paths)):", "size, min(1, len(turn.paths))):"),
    "R56": Mutant(
        "flow/gate.py",
        "        self.ending.rejections.append(why)\n        self._unit.end()\n",
        "        self.ending.rejections.append(why)\n",
    ),
    "R57": Mutant(
        "flow/performer.py",
        "        if all(ending.complete for ending in endings):\n",
        "        if any(ending.complete for ending in endings):\n",
    ),
    "R58": Mutant("flow/performer.py", "list(records))", "list(records)[::-1])"),
    "R59": Mutant(
        "flow/runner.py",
        "self._here.status, self._here.record = self._machine.initial,",
        "self._here.status, self._here.record = self._here.status,",
    ),
    "R60": Mutant(
        "flow/performer.py", "if turn.unit.steps[0].sub is not None and turn.target == self.here.status:", "if False:"
    ),
    "R61": Mutant(
        "flow/runner.py",
        "raise Fault(fault.failure, fault.text, fault.cause, settled) from fault",
        "raise StepFailed(fault.text) from fault",
    ),
    "R62": Mutant("flow/runner.py", "number == step.loop.max", "number > step.loop.max"),
    "R42": Mutant(
        "flow/endings.py",
        'sorted(key for key in self.approvers.values() if role(key) == "approver")',
        "sorted(self.approvers.values())",
    ),
    "R43": Mutant("flow/endings.py", 'f"{one.message.record.id}#escalate"', 'f"{one.message.record.id}#escalated"'),
    "R44": Mutant("flow/endings.py", 'error.add_note("the run has no approvers', 'str("the run has no approvers'),
    "R45": Mutant("flow/endings.py", "if self.journal.thread.is_declined(one.message.address):", "if False:"),
    "R63": Mutant("flow/gate.py", "_REMINDERS: Final = (0.5, 0.9)", "_REMINDERS: Final = (0.5,)"),
    "S1": Mutant(
        "flow/gate.py",
        "        async with unit.committing:\n            last = confirms",
        "        await self._tell(name, self._message, ack, ruling)\n"
        "        async with unit.committing:\n"
        "            last = confirms",
    ),
    "S2": Mutant(
        "flow/store/memory.py",
        "            if done:\n                stored.thread",
        "            if False:\n                stored.thread",
    ),
    "S3": Mutant("flow/store/memory.py", "if at != stored.head:", "if at.tip != stored.head.tip:"),
    "S4": Mutant("flow/store/memory.py", "if at != stored.head:", "if False:"),
    "S5": Mutant("flow/journal.py", 'if error.code == "store.conflict":', "if False:"),
    "S6": Mutant("flow/store/contract.py", 'if error.code != "store.in_doubt":', "if True:"),
    "S7": Mutant(
        "flow/runner.py",
        "record = self._here.text if self._here.text != turn.before[2] else None",
        "record = self._here.text",
    ),
    "S8": Mutant(
        "flow/store/memory.py",
        "stored.states.append(State(stored.thread.tip, state))\n        stored.made",
        "stored.states.append(State(at.tip, state))\n        stored.made",
    ),
    "S9": Mutant("flow/firing.py", "encode([thread, list(path), slot])", "encode([thread, slot])"),
    "S10": Mutant("flow/store/memory.py", "return Head.first(address(opening))", "return self._threads[name].head"),
    "S11": Mutant("flow/store/memory.py", "if list(records[:count]) != stored.records:", "if False:"),
    "S12": Mutant("flow/store/database.py", 'connection.execute("COMMIT")', 'connection.execute("ROLLBACK")'),
    "S13": Mutant(
        "flow/store/sqlite.py",
        "if standing is not None and (standing.last, standing.digest) == last(connection, standing.number):",
        "if standing is not None:",
    ),
    "S14": Mutant("flow/store/database.py", '("store.full", "the disk is full', '("store.readonly", "the disk is full'),
    "S15": Mutant(
        "flow/store/commits.py",
        "            if not row.sound:\n                raise _damaged",
        "            if False:\n                raise _damaged",
    ),
    "S16": Mutant("flow/store/database.py", "0o600", "0o644"),
    "S17": Mutant("flow/store/sqlite.py", "anyio.CancelScope(shield=True)", "anyio.CancelScope()"),
    "S18": Mutant("flow/cli_threads.py", "if out.exists() and not force:", "if False:"),
    "S19": Mutant("flow/store/sqlite.py", "self._database.use(wait=False)", "self._database.use()"),
    "D1": Mutant("flow/stored.py", 'if verdict.integrity != "valid":', "if False:"),
    "D2": Mutant("flow/runner.py", "if opening.record.room != self._cast.room:", "if False:"),
    "D3": Mutant("flow/runner.py", '            await self._journal.note(self._entry("resumed"))\n', ""),
    "D4": Mutant("flow/gate.py", " if not is_confirmed(ask.answers, peer.key)}", "}"),
    "D5": Mutant("flow/gate.py", "ack, correction, left = None, ruling, left - 1", "ack, correction = None, ruling"),
    "D6": Mutant("flow/runner.py", "        self._journal.carry(owed)\n", ""),
    "D7": Mutant(
        "flow/performer.py",
        "await self._begin_attempt(turn, begun + 1)",
        "await self._begin_attempt(turn, max(begun, 1))",
    ),
    "D8": Mutant(
        "flow/performer.py",
        "zip(turn.unit.steps, turn.paths, strict=True) if step.once]",
        "zip(turn.unit.steps, turn.paths, strict=True) if not step.once]",
    ),
    "D9": Mutant(
        "flow/runner.py",
        '            await self._ledger.tell_again([one for one in entries if one.phase != "resumed"][-1])\n',
        "",
    ),
    "D10": Mutant(
        "flow/gate.py",
        "        if self._ask.escalation is not None:\n            return",
        "        if False:\n            return",
    ),
    "D11": Mutant("flow/runner.py", "ended = self._take_seal(entries, envelopes[-1])", "ended = None"),
    "D12": Mutant("flow/stored.py", " or any(state.tip not in known for state in states)", ""),
    "D13": Mutant(
        "flow/progress.py", "                trace.rounds[one.round] = bool(one.again)\n", "                pass\n"
    ),
    "D14": Mutant("flow/runner.py", "        evidence.check(self._history, self._plan, self._machine.initial)\n", ""),
    "W1": Mutant(
        "flow/approvals.py", "elif (became := self._became.get(escalation.address)) is not None:", "elif False:"
    ),
    "W2": Mutant("flow/approvals.py", "    if not who.owes:\n", "    if False:\n"),
    "W3": Mutant("flow/approvals.py", 'if error.code != "store.conflict":', "if True:"),
    "W4": Mutant("flow/approvals.py", "if len(matching) > 1:", "if False:"),
    "W5": Mutant("flow/approvals.py", "files.get(address)) for what", "next(iter(files.values()), None)) for what"),
    "W6": Mutant("flow/closing.py", "_owed(stored) if identity.public_key == stored.thread.owner else []", "[]"),
    "W7": Mutant("flow/runner.py", 'if seal.record.outcome == "cancelled" and', "if False and"),
}
