"""How the compiled libraries are built: used by setup.py, the wheels and the checks that compile."""
