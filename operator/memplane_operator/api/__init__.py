"""The `MemoryBackend` resource as typed models, and the CRD that `memplane_operator.api.crd` makes of them."""
