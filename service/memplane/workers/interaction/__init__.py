"""INTERACTION: tools that act outside, and what they bring back."""
