"""CONTEXT: the working context of an agent, explicit or kept per scope."""
