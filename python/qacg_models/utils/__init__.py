"""Helpers without a subject of their own: processes, devices, atomic files, locks, option fields, provenance."""
