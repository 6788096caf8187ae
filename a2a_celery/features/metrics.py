"""Features in the metrics of a deployment: the metrics of the store that belong to features."""

from __future__ import annotations

from .webhooks.deliveries import DeliveryMetrics as FeatureMetrics
from .webhooks.deliveries import delivery_metrics as read_feature_metrics

__all__ = ["FeatureMetrics", "read_feature_metrics"]
