"""Paths of the shop."""

from django.urls import path
from orders import views

urlpatterns = [
    path("orders/", views.orders),
    path("orders/now/", views.order_now),
    path("orders/all/", views.order_all),
]
