"""Figures of a campaign, drawn here from its record."""
