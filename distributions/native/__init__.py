"""How the compiled libraries are built; setup.py, the wheels and the checks that compile by themselves ask here."""
