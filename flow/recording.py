"""A run's record as text and back, so that it can go on in another process (rule M14)."""

import json
from dataclasses import is_dataclass
from typing import Any, Final

from pydantic import BaseModel, TypeAdapter

from flow.errors import MachineError
from flow.machine import check_record

_LONGEST: Final = 1_000_000


class Shape:
    """How records of one type are written down: JSON data as JSON, models and dataclasses as pydantic writes them.

    Args:
        record: one of them.

    Raises:
        MachineError: `machine.record`.
    """

    def __init__(self, record: object) -> None:
        check_record(record)
        self._type = type(record)
        self._adapter: TypeAdapter[Any] | None = None
        if isinstance(record, BaseModel) or is_dataclass(record):
            try:
                self._adapter = TypeAdapter(type(record))
            except Exception as error:
                raise _unwritable(error) from error

    def dump(self, record: object) -> str:
        """Return a record as text, from which `load` makes its equal.

        Raises:
            MachineError: `machine.record`, the record cannot be written down, or is something else when read back.
        """
        try:
            text = self._dump(record)
            same = self._adapter is None or self._is_kept(record, text)
        except MachineError:
            raise
        except Exception as error:
            raise _unwritable(error) from error
        if not same:
            raise MachineError(
                "the record is another one when it is written down and read back: let its type keep what it is given, "
                "and compare by that",
                code="machine.record",
            )
        if len(text) > _LONGEST:
            raise MachineError(
                f"the record is {len(text)} characters of JSON, more than {_LONGEST}: keep the bulk elsewhere, "
                "and its address in the record",
                code="machine.record",
            )
        return text

    def load(self, text: str) -> Any:
        """Return the record that a text was made of.

        Raises:
            MachineError: `machine.record`.
        """
        try:
            record = json.loads(text) if self._adapter is None else self._adapter.validate_json(text)
            if type(record) is not self._type:
                raise TypeError(f"it is a {type(record).__name__}, not a {self._type.__name__}")
        except Exception as error:
            raise MachineError(
                f"the stored record is none of this run's type: {error}: give `resume` a record of the type that the "
                "run was started with",
                code="machine.record",
            ) from error
        return record

    def _is_kept(self, record: object, text: str) -> bool:
        again = self.load(text)
        return bool(again == record) and self._dump(again) == text

    def _dump(self, record: object) -> str:
        data = record
        if self._adapter is not None:
            data = self._adapter.dump_python(record, mode="json", round_trip=True, warnings=False)
        return json.dumps(data, allow_nan=False, separators=(",", ":"))


def _unwritable(error: Exception) -> MachineError:
    return MachineError(
        f"the record cannot be written down: {error}: use fields that pydantic can write as JSON", code="machine.record"
    )
