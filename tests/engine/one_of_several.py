"""What one of several processes runs: `folder coordinator count index`; not collected by pytest."""

import json
import pathlib
import sys

import fedhsa as fh

if __name__ == "__main__":
    folder, coordinator, count, index = sys.argv[1:]
    fh.join_processes(coordinator, int(count), int(index), timeout=60)
    from test_hosts import METHODS, do

    for number, task in enumerate(json.loads(pathlib.Path(folder, "tasks.json").read_text())):
        if step_size := task.pop("step_size", None):
            METHODS["wild"] = ("td", fh.FedHSA(step_size, 3))
            task["method"] = "wild"
        result = do(**task)
        result.save(pathlib.Path(folder, f"{number}-{index}.npz"))
