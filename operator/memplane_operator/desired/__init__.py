"""What a backend needs, as pure functions: spec and facts in, Kubernetes objects out. No I/O; golden-tested."""
