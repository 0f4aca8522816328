"""`remote:http://HOST:PORT`: an environment that is played on a server, ours or one of AgentGym's.

What may be sent again: asking who is there, listing tasks, creating a session, resetting it. A step never, once it may
have been carried out: it raises instead, and the next `reset` starts on a fresh session, on the next server if there
are several.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from openmanus_rl.environments.base import SPLITS, Split, StepResult, TextEnv
from openmanus_rl.environments.remote import PROTOCOL
from openmanus_rl.environments.remote.dialects import DIALECTS, ID, own_info, read_answer, reset_body, session_of
from openmanus_rl.environments.remote.errors import (
    AnswerLostError,
    RemoteEnvError,
    ServerRefusedError,
    ServerUnreachableError,
)
from openmanus_rl.environments.remote.tasks import DataIndexes, RemoteTasks
from openmanus_rl.environments.remote.transport import Address, Caller

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from openmanus_rl.data.json_values import Json
    from openmanus_rl.environments.base import AnchorMode, Info
    from openmanus_rl.environments.remote.dialects import Answer, Dialect

T = TypeVar("T")
TOKEN_VARIABLE = "OPENMANUS_RL_TOKEN"
# Statuses that pass: too many sessions just now, or a proxy that does not reach the server.
_BUSY = (429, 502, 503, 504)
_MAX_BACKOFF_SECONDS = 10.0
_CLOSE_SECONDS = 2.0
_instances: dict[tuple[Address, ...], Iterator[int]] = {}
# Servers that number sessions from 0 give a number again after a restart: two instances must not share one.
_held: dict[tuple[Address, int], _Session] = {}
_holding = threading.Lock()


@dataclass(slots=True, eq=False)
class _Session:
    """A session on a server. `gone`: the server has given its number to another, so it was restarted."""

    caller: Caller
    dialect: Dialect
    number: int
    gone: bool = False

    def hold(self) -> None:
        """Note that the number is ours; whoever held it before has lost it with the server's earlier life."""
        with _holding:
            before = _held.get((self.caller.address, self.number))
            if before is not None:
                before.gone = True
            _held[self.caller.address, self.number] = self

    def close(self) -> None:
        """Close it if that is possible; some servers cannot, and a dead one need not."""
        with _holding:
            if self.gone:
                return
            _held.pop((self.caller.address, self.number), None)
        with contextlib.suppress(RemoteEnvError):
            self.caller.post("/close", {self.dialect.session: self.number}, timeout=_CLOSE_SECONDS)


class RemoteEnv(TextEnv):
    """An environment on one of `servers` (addresses with commas between them; instances take turns)."""

    name: ClassVar[str] = "remote"
    blocking = True

    def __init__(
        self,
        servers: str,
        *,
        anchor_mode: AnchorMode = "state",
        token: str | None = None,
        timeout: float = 120.0,
        retries: int = 4,
        backoff: float = 0.25,
        dialect: str = "auto",
        train_tasks: int = 1000,
        valid_tasks: int = 100,
        valid_seen_offset: int | None = None,
        valid_unseen_offset: int | None = None,
        win_reward: float = 1.0,
        task_key: str | None = None,
        create_fields: dict[str, Any] | None = None,
        reset_fields: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(anchor_mode)
        if dialect not in ("auto", *DIALECTS):
            raise ValueError(f"dialect must be auto, {' or '.join(DIALECTS)}, got {dialect!r}")
        _check_number("timeout", timeout, 0.001)
        _check_number("backoff", backoff, 0)
        _check_number("win_reward", win_reward, 1e-9)
        if isinstance(retries, bool) or not isinstance(retries, int) or retries < 0:
            raise ValueError(f"retries must be a whole number from 0, got {retries!r}")
        self._indexes = DataIndexes(train_tasks, valid_tasks, valid_seen_offset, valid_unseen_offset)
        self._dialect = DIALECTS.get(dialect)
        self._retries, self._backoff, self._win_reward = retries, float(backoff), float(win_reward)
        self._task_key, self._create_fields, self._reset_fields = task_key, create_fields or {}, reset_fields or {}
        token = token or os.environ.get(TOKEN_VARIABLE) or None
        addresses = tuple(Address.parse(url) for url in servers.split(","))
        self._callers = [Caller(address, token, float(timeout)) for address in addresses]
        # dict.setdefault and next are atomic, so instances made by several threads take turns too.
        self._turn = next(_instances.setdefault(addresses, itertools.count()))
        self.reward_bounds = (-math.inf, math.inf)  # until one of our servers says better
        self._session: _Session | None = None
        self._lists: dict[Split, RemoteTasks] = {}
        self._environment: str | None = None
        self._is_ours = self.passes_options_on = self._on_any_server(self._ask_who)

    # --- the contract ------------------------------------------------------------------------------------------

    def tasks(self, split: Split) -> Sequence[str]:
        """The server's tasks; of a foreign server, as many numbers as the options say."""
        if not self._is_ours:
            return self._indexes.tasks(split)
        if split not in SPLITS:
            raise ValueError(f"no split {split!r}: there are {', '.join(SPLITS)}")
        if split not in self._lists:
            self._lists[split] = RemoteTasks(lambda path: self._on_any_server(lambda caller: caller.get(path)), split)
        return self._lists[split]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, Info]:
        """Start a task, on the session there is, else on a new one."""
        super().reset(seed=seed)
        self._episode = None
        # A foreign server knows numbers only; ours chooses as the environment itself would.
        task = None if self._is_ours and (options or {}).get("task") is None else self.choose_task(seed, options)
        number = None if self._is_ours else self._indexes.number(task or "")
        answer = self._retried_reset(task, number, seed, options)
        info = self._info(answer, action=None)
        self.begin(info)
        return answer.observation, info

    def step(self, action: str) -> StepResult:
        """Send the action, once."""
        if (answer := self.answer_if_over()) is not None:
            return answer
        session = self._session
        if session is None or session.gone:
            raise RemoteEnvError("the episode was lost with its session; reset starts another")
        body: dict[str, Json] = {session.dialect.session: session.number, "action": action}
        try:
            told = self._until_sent(lambda: session.caller.post("/step", body))
            shown = read_answer(told, session.dialect, f"{session.caller.address}/step", self._is_ours)
        except ServerUnreachableError:
            raise  # nothing has happened to the episode, if the server is still there
        except AnswerLostError as error:
            self._drop()
            raise AnswerLostError(
                f"{error}. The step may have been carried out, so it is not repeated: the episode is lost; reset "
                "starts another"
            ) from error
        except RemoteEnvError:
            self._drop()
            raise
        info = self._info(shown, action)
        if shown.terminated or shown.truncated:
            self.end(info, shown.terminated, shown.truncated)
        else:
            self.begin(info)
        return shown.observation, shown.reward, shown.terminated, shown.truncated, info

    def close(self) -> None:
        """Close the session; never raises."""
        self._drop()
        self._episode = None

    # --- sessions ----------------------------------------------------------------------------------------------

    def _retried_reset(self, task: str | None, number: int | None, seed: int | None, options: Any) -> Answer:
        """Reset until it works. An old session may be gone (restart, idle): then, and only then, any error allows a
        second try on a new one; a new one's error is the answer, unless the server was merely busy or away.
        """
        error: RemoteEnvError | None = None
        if self._session is not None and self._session.gone:
            self._session = None
        for _ in self._attempts(extra=self._session is not None):
            old = self._session is not None
            try:
                session = self._session = self._session or self._open(self._caller())
                return self._reset_once(session, task, number, seed, options)
            except ServerRefusedError as refused:
                error = refused
                if refused.status == 422 and self._is_ours:
                    raise ValueError(str(refused)) from None
                if not old and refused.status not in _BUSY:
                    self._drop()
                    raise
            except (ServerUnreachableError, AnswerLostError) as failed:
                error = failed
            self._drop()
            if not old:
                self._turn += 1
        assert error is not None
        raise error

    def _reset_once(
        self, session: _Session, task: str | None, number: int | None, seed: int | None, options: Any
    ) -> Answer:
        body: dict[str, Json]
        if number is None:
            body = {"id": session.number, "task": task, "seed": seed, "options": dict(options or {}) or None}
        else:
            body = {**reset_body(session.dialect, session.number, number, self._task_key), **self._reset_fields}
        where = f"{session.caller.address}/reset"
        return read_answer(session.caller.post("/reset", body), session.dialect, where, self._is_ours)

    def _open(self, caller: Caller) -> _Session:
        """A new session on a server, which must be what the others are."""
        is_ours = self._ask_who(caller)
        if is_ours is not self._is_ours:
            raise RemoteEnvError(f"{caller.address} is not the kind of server that it was, or that the others are")
        told = caller.post("/create", dict(self._create_fields))
        dialect, number = session_of(told, ID if is_ours else self._dialect, str(caller.address))
        session = _Session(caller, dialect, number)
        session.hold()
        return session

    def _ask_who(self, caller: Caller) -> bool:
        """Whether the server is ours; its environment and bounds are noted, and compared with what they were."""
        try:
            told = caller.get("/version")
        except ServerRefusedError as error:
            if error.status in (401, 403, *_BUSY):
                raise
            return False  # AgentGym's servers have no such route
        if not isinstance(told, dict) or told.get("name") != "openmanus-rl":
            return False
        if told.get("protocol") != PROTOCOL:
            raise RemoteEnvError(
                f"{caller.address} speaks protocol {told.get('protocol')} (openmanus-rl {told.get('version')}), this "
                f"client {PROTOCOL}: install the same version on both sides"
            )
        environment = str(told.get("environment"))
        if self._environment not in (None, environment):
            raise RemoteEnvError(f"{caller.address} serves {environment}, not {self._environment} like the others")
        self._environment = environment
        bounds = told.get("reward_bounds")
        low, high = bounds if isinstance(bounds, list) and len(bounds) == 2 else (None, None)
        self.reward_bounds = (
            float(low) if isinstance(low, int | float) else -math.inf,
            float(high) if isinstance(high, int | float) else math.inf,
        )
        return True

    def _drop(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.close()

    # --- trying again ------------------------------------------------------------------------------------------

    def _caller(self) -> Caller:
        return self._callers[self._turn % len(self._callers)]

    def _attempts(self, extra: bool = False) -> Iterator[int]:
        """Every server once, then again after a pause, `retries` times; one attempt more for an old session."""
        count = len(self._callers)
        for attempt in range(count * (self._retries + 1) + extra):
            done = attempt - extra
            if done > 0 and done % count == 0:
                _pause(self._backoff, done // count - 1)
            yield attempt

    def _on_any_server(self, call: Callable[[Caller], T]) -> T:
        """What `call` answers for the first server that answers at all; only for what may be sent again."""
        error: RemoteEnvError | None = None
        for _ in self._attempts():
            try:
                return call(self._caller())
            except ServerRefusedError as refused:
                if refused.status not in _BUSY:
                    raise
                error = refused
            except (ServerUnreachableError, AnswerLostError) as failed:
                error = failed
            self._turn += 1
        assert error is not None
        raise error

    def _until_sent(self, call: Callable[[], T]) -> T:
        """What `call` answers; sent again only where there was no connection to send it over."""
        for attempt in range(self._retries):
            try:
                return call()
            except ServerUnreachableError:
                _pause(self._backoff, attempt)
        return call()

    # --- the info ----------------------------------------------------------------------------------------------

    def _info(self, answer: Answer, action: str | None) -> Info:
        """The server's own; for a foreign server, what can be known: see docs/environments/remote.md."""
        if self._is_ours:
            info: Info = own_info(answer)
            if self.anchor_mode == "observation":
                info["anchor"] = answer.observation
            return info
        before = self._episode[2] if self._episode is not None else {}
        known = before.get("admissible_actions")
        over = answer.terminated or answer.truncated
        return self.describe(
            answer.observation,
            state=answer.observation,
            won=over and answer.reward >= self._win_reward,
            score=min(1.0, max(0.0, answer.reward / self._win_reward)) if over else 0.0,
            task_type=answer.task_type or before.get("task_type") or "remote",
            admissible_actions=answer.admissible,
            action_valid=action is None or known is None or action in known,
        )


def _pause(backoff: float, attempt: int) -> None:
    time.sleep(min(_MAX_BACKOFF_SECONDS, backoff * 2**attempt))


def _check_number(name: str, value: object, low: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value < math.inf:
        raise ValueError(f"{name} must be a number of at least {low:g}, got {value!r}")
