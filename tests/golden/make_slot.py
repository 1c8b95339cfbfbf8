"""Make `slot_v3.bin`: what llama-server of the pinned build saves from slot 1 of 2. Run by hand,
with a llama-server at hand.

python tests/golden/make_slot.py
"""

from __future__ import annotations

import importlib.util
import random
import tempfile
from pathlib import Path

from taliesin.server import process as server
from taliesin.server.options import Options

HERE = Path(__file__).parent


def main() -> None:
    spec = importlib.util.spec_from_file_location("conftest", HERE.parent / "conftest.py")
    assert spec is not None
    assert spec.loader is not None
    conftest = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(conftest)
    options = Options(n_slots=2, n_ctx=512, n_ubatch=64, n_threads=1)
    tokens = [1, *random.Random(3).choices(range(261, 355), k=299)]
    with tempfile.TemporaryDirectory() as folder:
        model = conftest.write_model(Path(folder) / "tiny.gguf", 1, 32)
        with server.private(model, options) as made:
            made.client.complete(tokens, 0, 1)
            made.client.save_slot(1, "a")
            (HERE / "slot_v3.bin").write_bytes((made.slot_folder / "a").read_bytes())


if __name__ == "__main__":
    main()
