"""The engine: the only place that meets llama_cpp. Saves, grafts, certifies."""
