#!/bin/bash
# Made by `holdfast run --on slurm`: the first node coordinates, every other node joins it.
#SBATCH --job-name=holdfast-train-2
#SBATCH --chdir="/shared/my work"
#SBATCH --nodes=3
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=6
#SBATCH --gpus-per-node=2
#SBATCH --mem=4608M
#SBATCH --time=1-02:03:04
#SBATCH --partition=gpu
#SBATCH --account=lab
#SBATCH --qos=long
#SBATCH --constraint="intel&ssd"
#SBATCH --signal=B:TERM@120
#SBATCH --output="/shared/my runs/100%%/train-2/slurm-%j.out"
#SBATCH --open-mode=append
#SBATCH --no-kill
#SBATCH --no-requeue
#SBATCH --exclusive --nodelist=a,b,c

module load python
source ~/venv/bin/activate

dir='/shared/my runs/100%/train-2'

# A directory holds one run: what an earlier attempt of this job left there is moved aside.
if [ -e "$dir/run.json" ]; then
    n=0
    while [ -e "$dir/attempt-$n" ]; do n=$((n + 1)); done
    mkdir "$dir/attempt-$n"
    for it in "$dir"/*; do
        case "${it##*/}" in job.sh | slurm-* | attempt-*) ;; *) mv -- "$it" "$dir/attempt-$n/" ;; esac
    done
fi

# One agent on every other node. It is started again when it was killed or lost the run; all end with the job.
agent='
    for try in $(seq 3); do
        until [ -s "$1/address" ]; do sleep 0.5; done
        read -r address <"$1/address"
        host=$SLURM_LAUNCH_NODE_IPADDR
        case $host in *:*) host="[$host]" ;; esac
        '\''/opt/my venv/bin/python'\'' -m holdfast.cli.main join "$host:${address##*:}" --credentials "$1/credentials" --workers 2
        code=$?
        [ "$code" -eq 10 ] || [ "$code" -gt 128 ] || exit "$code"
        sleep "$try"
    done
    exit "$code"
'
( srun --nodes=2 --ntasks=2 --ntasks-per-node=1 --relative=1 --cpus-per-task=6 --no-kill --kill-on-bad-exit=0 --wait=0 --input=none --open-mode=append '--output=/shared/my runs/100%%/train-2/slurm-%j-%N.out' bash -c "$agent" agent "$dir" & )

# The coordinator, with this node's workers. It writes its address and its token into $dir.
exec '/opt/my venv/bin/python' -m holdfast.cli.main run --on local --listen '[::]' --tls --dir "$dir" --hosts 3 --workers 2 --lanes 8 --servers 1 --set crew.settle=2.0 '/shared/it'"'"'s mine/train.py' --name 'a b' '$HOME'
