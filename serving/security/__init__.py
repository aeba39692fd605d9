"""Who may ask a server, and how the way to it is kept private: bearer tokens and TLS, alike for HTTP and gRPC, and both ends of each."""
