#!/bin/bash
# Made by `holdfast run --on slurm`: the first node coordinates, every other node joins it.
#SBATCH --job-name=holdfast-train-1
#SBATCH --chdir="/shared/my work"
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=1
#SBATCH --signal=B:TERM@60
#SBATCH --output="/shared/runs/train-1/slurm-%j.out"
#SBATCH --open-mode=append
#SBATCH --no-kill
#SBATCH --requeue

dir=/shared/runs/train-1

# A directory holds one run: what an earlier attempt of this job left there is moved aside.
if [ -e "$dir/run.json" ]; then
    n=0
    while [ -e "$dir/attempt-$n" ]; do n=$((n + 1)); done
    mkdir "$dir/attempt-$n"
    for it in "$dir"/*; do
        case "${it##*/}" in job.sh | slurm-* | attempt-*) ;; *) mv -- "$it" "$dir/attempt-$n/" ;; esac
    done
fi

# The coordinator, with this node's workers. It writes its address and its token into $dir.
exec holdfast run --on local --listen 0.0.0.0 --dir "$dir" --hosts 1 --workers 1 train.py
