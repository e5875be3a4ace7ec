"""One module per row (see `bench.frame`)."""
