"""A Dask scheduler on this node, workers as SLURM jobs: python slurm.py, then evotune run.

Needs `pip install dask-jobqueue evotune[cluster,cuda13]` in an environment that the compute nodes
see too. Change what your cluster calls its partition, and how long a job may run.
"""

from __future__ import annotations

import time

from dask_jobqueue import SLURMCluster

GPUS = 4  # jobs, one GPU and one worker each

cluster = SLURMCluster(
    queue="gpu",
    walltime="02:00:00",
    cores=20,  # trials in flight on a worker: its 14 compilers' and a few that wait for the GPU
    processes=1,
    job_cpu=16,
    memory="64GB",
    job_extra_directives=["--gres=gpu:1"],
    worker_extra_args=["--lifetime", "110m", "--lifetime-stagger", "5m"],
    scheduler_options={"port": 8786, "dashboard": False},
)

if __name__ == "__main__":
    cluster.scale(jobs=GPUS)
    print(f"evotune run attention-mma --cluster {cluster.scheduler_address}", flush=True)
    while True:
        time.sleep(60)
