"""Adopting a `long_term_memory` table that another application made and still writes (seed `002` section 14).

`memplane migrate --adopt` gives the table the columns, the trigger, the values and the indexes of the truth, in place:
no rewrite, no lock that writers wait for longer than `adoption.lock_timeout_seconds`. `--finish-adoption` takes the
trigger away once the old application has stopped.
"""
