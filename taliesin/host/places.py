"""The folders of the toolkit on this machine, but for the library, which is the user's to place."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs


def cache_dir() -> Path:
    """The folder for everything that can be had again: TALIESIN_CACHE, else the user's cache
    folder.
    """
    named = os.environ.get("TALIESIN_CACHE")
    return (
        Path(named).expanduser().absolute()
        if named
        else platformdirs.user_cache_path("taliesin", appauthor=False)
    )


def models_dir() -> Path:
    """The folder of the model files: TALIESIN_MODELS, else `models` in the cache folder."""
    named = os.environ.get("TALIESIN_MODELS")
    return Path(named).expanduser().absolute() if named else cache_dir() / "models"


def data_dir() -> Path:
    """The `data` folder that ships with the code: inside an installed package, beside it in a
    checkout.
    """
    package = Path(__file__).resolve().parents[1]
    installed = package / "data"
    return installed if installed.is_dir() else package.parent / "data"
