"""The same promise on llama-server."""
