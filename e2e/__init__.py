"""End-to-end tests on a real Kubernetes cluster: one file per promise. See CONTRIBUTING.md."""
