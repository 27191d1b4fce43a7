#!/bin/bash
# One simulation on two nodes: sbatch examples/cluster/slurm.sh --problem td --num-agents 1000 --seeds 64 --rounds 10000
# On one machine, as a trial:  sbatch --nodes=1 --ntasks-per-node=2 --cpus-per-task=1 examples/cluster/slurm.sh
#SBATCH --job-name=fedhsa
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=32
#SBATCH --time=04:00:00
#SBATCH --signal=TERM@120
#SBATCH --requeue
#SBATCH --output=%x-%j.log

# With GPUs, one task for each: --ntasks-per-node=4 --gpus-per-task=1, and fewer cores.
# SLURM sends TERM two minutes before the time is up: the run saves its state and ends. The same script, submitted again,
# goes on from there; on other numbers of nodes too.
srun --cpus-per-task="$SLURM_CPUS_PER_TASK" --kill-on-bad-exit=1 \
    fedhsa run "$@" --hosts auto --checkpoint --resume --no-progress --out "runs/$SLURM_JOB_NAME"
