"""Test of the agent `order`."""

import pytest
from orders.models import Order
from shop.celery import a2a

from a2a_celery.testing import AgentTester


@pytest.mark.django_db(transaction=True)
async def test_an_order_is_stored() -> None:
    async with AgentTester(a2a, "order") as tester:
        result = await tester.send({"product": "tea", "quantity": 2})

    assert result.state_name == "COMPLETED"
    assert (await Order.objects.aget()).quantity == 2
