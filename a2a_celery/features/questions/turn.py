"""`Turn.ask` and `Turn.ask_all`, which ask the client and return the answers in a later run, and their blocking
variants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, overload

from a2a.types import Message, Part

from ...errors import InputRequired
from ...execution.agents.running_agent import loop_method
from ...execution.agents.turn_members import BlockingTurnMembers, TurnMembers
from ...lifecycle.answers import AnswerRefused, AnswerType, AnswerTypes, require_valid_schema
from ...lifecycle.questions import Question, schema_part
from ..steps.journal import RunJournal
from .answer import Answer
from .answer_sequence import AnswerSequence
from .reminders import RemindAfter, Reminders

T = TypeVar("T")


class QuestionMethods(TurnMembers):
    """Methods of `Turn` for questions."""

    if TYPE_CHECKING:  # members of `Turn`

        @property
        def journal(self) -> RunJournal: ...

        @property
        def task_id(self) -> str: ...

    @overload
    async def ask(
        self,
        question: str = "",
        *,
        parts: Sequence[Part] | None = (),
        schema: None = None,
        remind_after: RemindAfter = None,
        escalate_to: str | None = None,
    ) -> Answer: ...

    @overload
    async def ask(
        self,
        question: str = "",
        *,
        parts: Sequence[Part] | None = (),
        schema: type[T],
        remind_after: RemindAfter = None,
        escalate_to: str | None = None,
    ) -> T: ...

    @overload
    async def ask(
        self,
        question: str = "",
        *,
        parts: Sequence[Part] | None = (),
        schema: Any,
        remind_after: RemindAfter = None,
        escalate_to: str | None = None,
    ) -> Any: ...

    @loop_method
    async def ask(
        self,
        question: str = "",
        *,
        parts: Sequence[Part] | None = (),
        schema: Any = None,
        remind_after: RemindAfter = None,
        escalate_to: str | None = None,
    ) -> Any:
        """Ask the client a question and return the answer.

        The first call ends the run in the state INPUT_REQUIRED, so no worker waits for the client. When the client has
        answered, any worker calls the function again from its beginning, and each answered `ask` returns immediately.
        Write the function so that it asks the same questions in the same order. After the last question, perform the
        actions that must happen only once.

        A run can ask only one new question. If the agent catches `InputRequired` and returns, or raises an exception
        other than an `EndRun`, the run still ends with the question.

        Args:
            question: Text of the question.
            parts: Further parts of the question. None means none.
            schema: Type of the answer: a Pydantic model, a dataclass, a TypedDict or any other type that Pydantic
                validates, or a JSON Schema as a dict. The gateway refuses an answer that does not match, and the task
                keeps its question. If a validator of the type refuses the answer, the question is asked again, with the
                reason. None accepts any message.
            remind_after: Seconds after which the question is repeated as a status event unless the client has answered,
                or a list of such times in ascending order, or None for no reminder. Webhooks also receive the
                repeated question.
            escalate_to: URL of a webhook that receives the last reminder and all later events of the task, or None.
                Clients cannot see the webhook. The URL must obey the rules for webhooks of clients.

        Returns:
            The answer of the client: an instance of the type `schema`, or the JSON value if `schema` is a JSON Schema.
            Without a schema, an `Answer`: the text, with the A2A message as an attribute.

        Raises:
            InputRequired: The client has not answered yet. Do not catch this exception, which is not an `Exception`.
            ValueError: The schema is invalid, is too large, or refers to another document, or `remind_after` or
                `escalate_to` is invalid.
            ConfigError: `escalate_to` is set without `secret_key`.
        """
        self.stop_if_asking()
        reminders = Reminders.of(remind_after, escalate_to, self._run.settings)
        if schema is not None:
            return self._answer_of(AnswerType(schema), question, parts, reminders=reminders)
        answer = self._next_answer()
        if answer is None:
            raise self._question(InputRequired(question, parts=parts), reminders)
        return Answer.of(answer)

    @property
    def question_count(self) -> int:
        """Number of questions that this run has asked, including answered questions and the questions of recorded
        steps."""
        return self._answer_sequence.position + (self._run.question is not None)

    def replay_questions(self, count: int) -> None:
        """Skip the first `count` questions, for code that does not ask them again in a later run."""
        self._answer_sequence.position = count

    @loop_method
    async def ask_all(
        self,
        questions: Mapping[str, Question],
        text: str = "",
        *,
        remind_after: RemindAfter = None,
        escalate_to: str | None = None,
    ) -> dict[str, Any]:
        """Ask the client several questions at once and return the answers by their keys.

        The client answers with one JSON object that has a value for each key. Answers in which a key is missing are
        refused. The run ends and continues as in `ask`.

        Args:
            questions: The questions by their keys.
            text: Text before the questions.
            remind_after: See `ask`.
            escalate_to: See `ask`.

        Returns:
            The answers by their keys: text without a schema, otherwise the value that `ask` would return.

        Raises:
            InputRequired: The client has not answered yet. Do not catch this exception, which is not an `Exception`.
            ValueError: `questions` is empty, or a schema, `remind_after` or `escalate_to` is invalid.
            ConfigError: `escalate_to` is set without `secret_key`.
        """
        self.stop_if_asking()
        reminders = Reminders.of(remind_after, escalate_to, self._run.settings)
        lines = [f"{key}: {question.text}" for key, question in questions.items()]
        question = "\n".join([text, *lines] if text else lines)
        answers: dict[str, Any] = self._answer_of(AnswerTypes(questions), question, reminders=reminders)
        return answers

    def _answer_of(
        self,
        expected: AnswerType | AnswerTypes,
        question: str,
        parts: Sequence[Part] | None = (),
        *,
        reminders: Reminders,
    ) -> Any:
        """Return the client's first valid answer. If there is none, end the run with the question.

        The reason why the last answer was refused precedes the question.

        Raises:
            InputRequired: The client has not sent a valid answer.
            ValueError: The schema is invalid.
        """
        reason = ""
        while (answer := self._next_answer()) is not None:
            try:
                return expected.parse(answer)
            except AnswerRefused as e:
                reason = f"The answer was not accepted. {e}"
        require_valid_schema(expected.schema)
        text = "\n".join(line for line in (reason, question) if line)
        raise self._question(InputRequired(text, parts=[schema_part(expected.schema), *(parts or ())]), reminders)

    @property
    def _answer_sequence(self) -> AnswerSequence:
        return self._agent.feature(AnswerSequence)

    def _next_answer(self) -> Message | None:
        """Return the client's next answer in this turn, or None if it has not arrived yet."""
        received = self._answer_sequence.next()
        if received is None:
            return None
        index, answer = received
        self.journal.receive_answers(index)
        return answer

    def _question(self, signal: InputRequired, reminders: Reminders) -> InputRequired:
        """Record the question of `signal`, which ends the run, and return `signal`."""
        journal = self._run.feature(RunJournal)
        if journal is not None:
            journal.flush()
        section = reminders.section(self.task_id, self._run.keys, self._run.settings)
        self._run.ask(signal.parts, section)
        return signal


class BlockingQuestionMethods(BlockingTurnMembers):
    """Blocking variants of `QuestionMethods`."""

    @overload
    def ask(
        self,
        question: str = "",
        *,
        parts: Sequence[Part] | None = (),
        schema: None = None,
        remind_after: RemindAfter = None,
        escalate_to: str | None = None,
    ) -> Answer: ...

    @overload
    def ask(
        self,
        question: str = "",
        *,
        parts: Sequence[Part] | None = (),
        schema: type[T],
        remind_after: RemindAfter = None,
        escalate_to: str | None = None,
    ) -> T: ...

    @overload
    def ask(
        self,
        question: str = "",
        *,
        parts: Sequence[Part] | None = (),
        schema: Any,
        remind_after: RemindAfter = None,
        escalate_to: str | None = None,
    ) -> Any: ...

    def ask(
        self,
        question: str = "",
        *,
        parts: Sequence[Part] | None = (),
        schema: Any = None,
        remind_after: RemindAfter = None,
        escalate_to: str | None = None,
    ) -> Any:
        """See `Turn.ask`."""
        return self._wait_for(
            lambda: self._turn.ask(
                question, parts=parts, schema=schema, remind_after=remind_after, escalate_to=escalate_to
            )
        )

    def ask_all(
        self,
        questions: Mapping[str, Question],
        text: str = "",
        *,
        remind_after: RemindAfter = None,
        escalate_to: str | None = None,
    ) -> dict[str, Any]:
        """See `Turn.ask_all`."""
        return self._wait_for(
            lambda: self._turn.ask_all(questions, text, remind_after=remind_after, escalate_to=escalate_to)
        )
