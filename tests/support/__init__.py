"""What the tests stand on: real servers and processes (``fleet``), agents (``agents``), waiting (``waiting``)."""
