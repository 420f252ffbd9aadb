#!/bin/bash --login
#PBS -q prod
#PBS -A AuroraGPT
#PBS -l select=4
#PBS -l walltime=06:00:00
#PBS -l filesystems=home:flare
#PBS -j oe
cd "${PBS_O_WORKDIR}" || exit
source "$PBS_O_WORKDIR/ALCF/helpers.sh"
setup
eval "${run_cmd[*]}" |& tee out.log
