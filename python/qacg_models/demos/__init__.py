"""Demos: `qacg demo`, speed on this machine, and a summariser trained on made-up meeting minutes."""
