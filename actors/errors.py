"""What can go wrong above storage, grouped by what the caller does next.

::

    ActorsError
    ├── CallRefused             the call is at fault; do not repeat it as it is
    │   ├── UnknownAgent        no agent class of that name is served here
    │   ├── UnknownMethod       the agent has no such method
    │   ├── MethodNotCallable   it has, but it is not offered to clients
    │   ├── NotAllowed          this principal may not
    │   ├── ReadOnlyConnection  this connection may not change the state
    │   └── NotFound            no such conversation (or not for this principal)
    ├── SessionError            a Session call that cannot be done
    │   ├── NoCompaction        no compaction function was registered
    │   ├── CalledFromInside    a function that the session calls has called the session, which waits for it
    │   ├── UnknownBlock        no context block of that label
    │   ├── BlockNotWritable    the block's provider cannot be written
    │   ├── BlockTooLarge       the content is over the block's max_tokens
    │   ├── CalledItself        a provider called the session that waits for it
    │   └── NotSupported        the provider has no such ability (search, …)
    ├── ModelError              the language model could not be used
    │   ├── NoModel             none is configured
    │   ├── ModelPackageMissing the package that calls it is not installed
    │   ├── ModelUnreachable    its endpoint gives no answer
    │   ├── ModelRefused        its endpoint refused the request
    │   └── ModelAnswerBroken   its answer cannot be used
    ├── TryAgain                certainly not executed; repeating it is right
    │   ├── Busy                no room to wake this conversation in time, or its queue is full
    │   ├── NotMine             this actor does not hold that conversation (any more)
    │   └── Draining            this node is stopping
    ├── CallFailed              the agent's method raised; says what
    ├── ConnectionLost          the connection is gone and the client was closed
    ├── BadSetting              a flag, a variable or a line of the settings file that cannot be used
    └── CommandFailed           a verb of the command line could not do what it was asked; says what to do

`storage.errors` has the rest (`OutcomeUnknown`, `Fenced`, `StoreUnavailable`, …).
Every error keeps its facts in ``args`` and makes its sentence in ``__str__``, so it crosses Ray unharmed.
"""

from storage.errors import StorageError


class ActorsError(StorageError):
    """Base of all errors of this layer (a `StorageError` too, so that one ``except`` catches what Perdure raises)."""

    code = "error"


class CallRefused(ActorsError):
    code = "refused"


class UnknownAgent(CallRefused):
    code = "unknown_agent"
    sentence = "No agent named {0!r} is served here; there are: {1}."


class UnknownMethod(CallRefused):
    code = "unknown_method"
    sentence = "Method {0} does not exist"  # text of the interface: PROTOCOL.md section 5


class MethodNotCallable(CallRefused):
    code = "method_not_callable"
    sentence = "Method {0} is not callable"  # text of the interface: PROTOCOL.md section 5


class NotAllowed(CallRefused):
    code = "not_allowed"
    sentence = "This needs the verb {0!r}, which this connection does not have."


class ReadOnlyConnection(CallRefused):
    code = "readonly"
    sentence = "Connection is readonly"  # text of the interface: PROTOCOL.md section 4


class NotFound(CallRefused):
    code = "not_found"
    sentence = "There is no conversation {0!r}."


class SessionError(ActorsError):
    code = "session_error"


class NoCompaction(SessionError):
    code = "no_compaction"
    sentence = "No compaction function registered. Call onCompaction() first."  # text of the interface


class CalledFromInside(SessionError):
    code = "called_from_inside"
    sentence = (
        "{0} was called from inside of a {1} of the same session, which waits for it; call it when that has returned."
    )


class UnknownBlock(SessionError):
    code = "unknown_block"
    sentence = "There is no context block {0!r}; there are: {1}."


class BlockNotWritable(SessionError):
    code = "block_not_writable"
    sentence = "The context block {0!r} is read-only."


class BlockTooLarge(SessionError):
    code = "block_too_large"
    sentence = "The context block {0!r} would be {1} tokens, over its limit of {2}; nothing was written."


class CalledItself(SessionError):
    code = "called_itself"
    sentence = "A provider of {0} called its own session, and each would wait for the other; let it do so after it has returned."


class NotSupported(SessionError):
    code = "not_supported"
    sentence = "{0}"


class ModelError(ActorsError):
    """The sentences hold the endpoint's address and nothing secret, and nothing of any message."""

    code = "model_error"


class NoModel(ModelError):
    code = "no_model"
    sentence = "No model is configured here: start the server with --model NAME, and --model-url unless it is OpenAI's."


class ModelPackageMissing(ModelError):
    code = "model_package_missing"
    sentence = "Calling a model needs the openai package: install the extra openai (pip install '.[openai]' in Perdure's folder)."


class ModelUnreachable(ModelError):
    code = "model_unreachable"
    sentence = "The model at {0} cannot be reached: {1}."


class ModelRefused(ModelError):
    code = "model_refused"
    sentence = "The model {0!r} at {1} refused the request (HTTP {2}, {3})."


class ModelAnswerBroken(ModelError):
    code = "model_answer_broken"
    sentence = "The answer of the model at {0} cannot be used: {1}."


class TryAgain(ActorsError):
    code = "try_again"
    is_retryable = True


class Busy(TryAgain):
    code = "busy"
    sentence = "Too busy to take this call now; nothing was done, repeat it in a moment."


class NotMine(TryAgain):
    code = "not_mine"
    sentence = "This actor does not hold that conversation; nothing was done, ask again where it is."


class Draining(TryAgain):
    code = "draining"
    sentence = "This node is stopping; nothing was done, repeat the call."


class CallFailed(ActorsError):
    """The method itself failed: ``args`` are the text of its error and its code."""

    code = "call_failed"
    sentence = "{0}"


class ConnectionLost(ActorsError):
    code = "connection_lost"
    sentence = "The connection was closed ({0}) and will not be opened again."


class BadSetting(ActorsError):
    """``args`` are where the value was given (a flag, a variable, a file) and what is wrong with it."""

    code = "bad_setting"
    sentence = "{0} {1}"


class CommandFailed(ActorsError):
    code = "command_failed"
    sentence = "{0}"
