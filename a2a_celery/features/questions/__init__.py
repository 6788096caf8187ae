"""Questions of agents: `Turn.ask`, the JSON Schema that an answer must match, and reminders.

Clients and servers share the form of a schema (``lifecycle/questions.py``) and its validation
(``lifecycle/answers.py``).

The feature uses `steps`, and `webhooks` for the last reminder of a question.
"""
