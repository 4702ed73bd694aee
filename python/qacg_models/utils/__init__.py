"""General helpers: processes, devices, files, locks, text, JSON, option fields, tables, progress bars, provenance."""
