"""Train the runs of a JSON file, one after another; torchrun starts this on every rank."""

from __future__ import annotations

import json
import sys
import traceback
from pathlib import Path

import torch

from wordloom.errors import WordloomError
from wordloom.run import train


def main(path: Path) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    for run in json.loads(path.read_text()):
        try:
            train(
                run["recipe"], run["settings"], out=run["out"], start_from=run["start"], resume=run["resume"]
            )
        except WordloomError as error:
            print(f"{run['out']}: {error}", flush=True)
        except Exception:
            print(run["out"], flush=True)
            traceback.print_exc()
            raise


if __name__ == "__main__":
    main(Path(sys.argv[1]))
