"""Pages of the shop, as JSON."""

import json

from a2a.utils.errors import InvalidParamsError
from django.db import transaction
from django.http import HttpRequest, JsonResponse
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST
from shop.celery import a2a

from a2a_celery.client import DeadlineExceeded

from .models import Order
from .tasks import order


@csrf_exempt
def orders(request: HttpRequest) -> JsonResponse:
    """Return the orders, or accept an order as before: with Celery's `delay`."""
    if request.method == "POST":
        return JsonResponse({"celery_id": order.delay(**json.loads(request.body)).id}, status=202)
    return JsonResponse({"orders": list(Order.objects.order_by("pk").values("product", "quantity"))})


@csrf_exempt  # for callers without a CSRF token, such as curl
@require_POST
def order_now(request: HttpRequest) -> JsonResponse:
    """Order through the agent and wait for its result."""
    try:
        task = a2a.submit("order", json.loads(request.body))
    except (ValueError, InvalidParamsError) as error:
        return JsonResponse({"error": str(error)}, status=400)
    try:
        result = task.result(timeout=30)
    except DeadlineExceeded as error:  # the task continues
        return JsonResponse({"task": task.task_id, "state": error.result.state_name}, status=202)
    return JsonResponse({"task": task.task_id, "state": result.state_name})


@csrf_exempt
@require_POST
def order_all(request: HttpRequest) -> JsonResponse:
    """Order several products after the commit, or none of them."""
    try:
        with transaction.atomic():
            products = json.loads(request.body)
            tasks = [a2a.submit("order", product, on_commit=transaction.on_commit) for product in products]
    except (ValueError, InvalidParamsError) as error:
        return JsonResponse({"error": str(error)}, status=400)
    return JsonResponse({"tasks": [task.task_id for task in tasks]}, status=202)
