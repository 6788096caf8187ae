"""Pages of the shop, as JSON."""

import json

from django.http import HttpRequest, JsonResponse
from shop.celery import a2a

from .models import Order
from .tasks import order


def orders(request: HttpRequest) -> JsonResponse:
    """Return the orders, or accept an order as before: with Celery's `delay`."""
    if request.method == "POST":
        return JsonResponse({"celery_id": order.delay(**json.loads(request.body)).id}, status=202)
    return JsonResponse({"orders": list(Order.objects.order_by("pk").values("product", "quantity"))})


def order_now(request: HttpRequest) -> JsonResponse:
    """Order through the agent and wait for its result."""
    task = a2a.submit("order", json.loads(request.body))
    result = task.result(timeout=30)
    return JsonResponse({"task": task.task_id, "state": result.state_name})
