"""The memplane operator."""
