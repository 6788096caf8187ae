"""Plain Celery task that `A2A.expose` turns into an A2A agent."""

from celery import Task

from .app import a2a, app


@app.task(bind=True, autoretry_for=(ConnectionError,), max_retries=3)
def count_words(self: Task, text: str, longest: int = 3) -> dict[str, object]:
    """Counts the words of a text and lists the longest ones."""
    words = text.split()
    self.update_state(state="PROGRESS", meta={"words": len(words)})
    return {"words": len(words), "longest": sorted(set(words), key=len, reverse=True)[:longest]}


a2a.expose(count_words, name="words")
