"""`make demo`: a memory service on embedded servers, filled with a real corpus, shown at work and left running."""
