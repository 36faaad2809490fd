"""What can go wrong in storage, grouped by what the caller does next.

::

    StorageError
    ├── Refused                 the input is at fault; nothing was stored; do not repeat it as it is
    │   ├── InvalidMessage      a message without id, role or parts, with a reserved id, or not an object
    │   ├── UnknownMessage      an update of a message that is not there
    │   ├── UnknownParent       a parent that is not in this session
    │   ├── UnknownSession      a session that was never created
    │   ├── InvalidArgument     any other argument of the wrong kind or size
    │   ├── SkillsRefused       the bucket or folder of skills gives no access, or does not exist
    │   └── LimitExceeded       over a configured limit
    ├── NotExecuted             nothing was stored; repeating it is right
    │   ├── Fenced              another writer has taken this conversation over
    │   ├── StoreUnavailable    the checkpoint store gives no answer
    │   ├── SkillsUnavailable   the bucket of skills gives no answer
    │   ├── Overloaded          too much is waiting already
    │   ├── LocalDiskFailed     the file on this node could not be written (full, locked, unreadable)
    │   └── Closed              the database is closed
    ├── OutcomeUnknown          it may or may not have been stored; repeat it with the same message id
    └── Damaged                 an operator has to look
        ├── CorruptRecord       a slot or a snapshot does not have the hash it must have
        ├── CorruptDatabase     SQLite says that the file is not sound
        ├── ForeignDatabase     a SQLite file that Perdure did not write, or a newer Perdure did
        └── UnsafeStore         the store does not enforce create-only writes

Every error keeps its facts in ``args`` and makes its sentence in ``__str__``, so it survives pickling.
``code`` is the stable short name that goes over the wire; ``is_retryable`` says whether repeating may help.
"""

from string import Formatter
from typing import Any, ClassVar, Final

_SHOWN: Final = 100


def shown(value: Any) -> str:
    """A value as a sentence can repeat it: short texts and numbers as they are, everything else by its kind."""
    if isinstance(value, str):
        text = value if len(value) <= _SHOWN else value[: _SHOWN - 1] + "…"
        return repr(text)
    if value is None or isinstance(value, bool | float) or (isinstance(value, int) and abs(value) < 10**20):
        return str(value)
    if isinstance(value, int):
        return "a number of many digits"
    name = type(value).__name__
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"


class _Sentences(Formatter):
    """``{0!r}`` is a fact as `shown`: what a caller gave can be large, or deeper than Python's stack."""

    def convert_field(self, value: Any, conversion: Any) -> Any:
        return shown(value) if conversion == "r" else super().convert_field(value, conversion)


_sentences: Final = _Sentences()


class StorageError(Exception):
    """Base of all errors of this layer."""

    code: ClassVar[str] = "storage_error"
    is_retryable: ClassVar[bool] = False
    sentence: ClassVar[str] = "{0}"

    def __str__(self) -> str:
        try:
            return _sentences.format(self.sentence, *self.args)
        except IndexError:
            return self.sentence


class Refused(StorageError):
    code = "refused"


class InvalidMessage(Refused):
    code = "invalid_message"
    sentence = "This message was not stored: {0}."


class UnknownMessage(Refused):
    code = "unknown_message"
    sentence = "There is no message {0!r} in this session; nothing was changed."


class UnknownParent(Refused):
    code = "unknown_parent"
    sentence = "There is no message {0!r} in this session to append to; nothing was stored."


class UnknownSession(Refused):
    code = "unknown_session"
    sentence = "There is no session {0!r}; create it first."


class InvalidArgument(Refused):
    code = "invalid_argument"
    sentence = "{0}"


class SkillsRefused(Refused):
    code = "skills_refused"
    sentence = "The skills in {0} cannot be used ({1}); check its name, the credentials and what they allow."


class LimitExceeded(Refused):
    code = "limit_exceeded"
    sentence = "{0} is over the limit of {1}; nothing was stored."


class NotExecuted(StorageError):
    code = "not_executed"
    is_retryable = True
    sentence = "Nothing was stored; repeat the call."


class Fenced(NotExecuted):
    code = "fenced"
    sentence = "Another writer has taken this conversation over; nothing was stored, repeat the call."


class StoreUnavailable(NotExecuted):
    code = "store_unavailable"
    sentence = "The checkpoint store gives no answer ({0}); nothing was stored, repeat the call later."


class SkillsUnavailable(NotExecuted):
    code = "skills_unavailable"
    sentence = "The skills in {0} give no answer ({1}); repeat the call later, writing a skill twice is safe."


class Overloaded(NotExecuted):
    code = "overloaded"
    sentence = "Too much is waiting for this conversation ({0}); nothing was stored, repeat the call in a moment."


class LocalDiskFailed(NotExecuted):
    code = "local_disk_failed"
    sentence = "The local disk of this node failed ({0}); nothing was stored, repeat the call."


class Closed(NotExecuted):
    code = "closed"
    sentence = "This database is closed; nothing was stored."


class OutcomeUnknown(StorageError):
    code = "outcome_unknown"
    is_retryable = True
    sentence = "It is not known whether this was stored; repeating it with the same message id is safe."


class Damaged(StorageError):
    code = "damaged"


class CorruptRecord(Damaged):
    code = "corrupt_record"
    sentence = "{0} is damaged ({1}); `perdure check` says what can be restored."


class CorruptDatabase(Damaged):
    code = "corrupt_database"
    sentence = "{0} is not a sound SQLite file ({1})."


class ForeignDatabase(Damaged):
    code = "foreign_database"
    sentence = "{0} was not written by this version of Perdure ({1}); it was left untouched."


class UnsafeStore(Damaged):
    code = "unsafe_store"
    sentence = "The store {0} lets a second writer overwrite an object ({1}); Perdure cannot keep its promise there."
