"""Tables of the shop."""

from django.db import models


class Order(models.Model):
    """Order for a product."""

    product = models.CharField(max_length=100)
    quantity = models.PositiveIntegerField()
