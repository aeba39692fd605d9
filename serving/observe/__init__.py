"""What an on-call engineer sees of a server beside its metrics: requests by name in headers and logs, and traces."""
