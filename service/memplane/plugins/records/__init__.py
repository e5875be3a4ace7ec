"""What the batches of WRITE, UPDATE and DELETE mean, whatever database holds the memories. No I/O, no driver."""
