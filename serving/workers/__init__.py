"""Several processes that serve the same models on the same ports: `supervisor` starts and watches them, `worker` is one of them.

Each has a socket to the supervisor (`channel`), and nothing else between them: the system spreads connections over them (SO_REUSEPORT), and tables
are mapped from the same files. What one is asked about all, such as metrics or whether the server is ready, it asks them through the supervisor.
"""
