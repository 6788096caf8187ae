"""Processes and servers of the tests: fleets, brokers, databases, proxies and gateways."""
