"""Celery tasks of the shop."""

from celery import shared_task
from django.db import OperationalError
from shop.celery import a2a

from .models import Order


@shared_task(autoretry_for=(OperationalError,), retry_backoff=True, max_retries=3)
def order(product: str, quantity: int = 1) -> dict[str, str | int]:
    """Orders a product of the shop."""
    new = Order.objects.create(product=product, quantity=quantity)
    return {"order": new.pk, "product": product, "quantity": quantity}


a2a.expose(order)
