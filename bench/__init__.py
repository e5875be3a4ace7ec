"""`make bench`: the product beside its plain peers, in one run, through the product's own entry points."""
