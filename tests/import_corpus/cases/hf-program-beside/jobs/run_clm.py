"""Stands beside its script."""
