"""General helpers: processes, devices, atomic files, locks, option fields, provenance."""
