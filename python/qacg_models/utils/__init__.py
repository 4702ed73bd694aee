"""What any program needs: processes, threads, files that appear whole, options with help texts, provenance."""
