"""Two agents on two queues: one worker answers questions while another worker calculates."""

from celery import Celery

from a2a_celery import A2A, Turn

app = Celery("fleet")  # CELERY_BROKER_URL
a2a = A2A(app)


@a2a.agent("answers", description="Answers at once.", queue="fast")
async def answers(turn: Turn) -> str:
    return f"You said: {turn.text}"


@a2a.agent("primes", description="Counts the primes up to a number.", queue="slow", time_limit=600)
def primes(turn: Turn) -> str:
    """Count the primes. The function is not async, because it occupies a CPU."""
    limit = int(turn.text)
    sieve = bytearray([1]) * (limit + 1)
    sieve[:2] = bytes(min(2, limit + 1))
    for number in range(2, int(limit**0.5) + 1):
        if sieve[number]:
            sieve[number * number :: number] = bytes(len(range(number * number, limit + 1, number)))
    return f"{sum(sieve)} primes up to {limit}"
