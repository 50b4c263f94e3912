#!/usr/bin/env bash
# A private SLURM on one machine, for tests: `cluster.sh up DIR` and `cluster.sh down DIR`, as root.
#
# munged, slurmctld and one slurmd for each node run from DIR, with a key, a socket and state of their own; nothing in /etc or
# /run is touched. Where namespaces may be made, every node has a host name, an address and a scratch directory of its own, and only
# the file system is shared; else all nodes share the machine's name. Where memory control groups may be made, memory limits are real.
# `. DIR/env.sh` makes the client commands talk to it.
set -eu

ACTION=${1:?up or down}
DIR=$(realpath -m "${2:?directory}")
NODES=4
CPUS=4
MEMORY_MB=3000
export SLURM_CONF=$DIR/slurm.conf

fail() {
    echo "cluster.sh: $*" >&2
    exit 1
}

[ "$(id -u)" = 0 ] || fail "only root can run several slurmd"
[ "$(dirname "$DIR")" != / ] || fail "$DIR is no directory of its own"

use_tag() { # TAG: a number below 250, from which ports, addresses and names follow
    TAG=$1
    BASE_PORT=$((27000 + 10 * TAG))
    SUBNET=10.214.$TAG
    BRIDGE=swt${TAG}br
    NODE=swt${TAG}n # and a number: names of nodes, and of their namespaces
}

claim_tag() { # several clusters may be up at once: a link names the directory that has a tag
    local first tag claim
    first=$(($(echo "$DIR" | cksum | cut -d' ' -f1) % 250))
    for tag in $(seq "$first" 249) $(seq 0 $((first - 1))); do
        claim=${TMPDIR:-/tmp}/shardwrite-slurm-tag-$tag
        # nobody works in a directory that is gone
        if [ -L "$claim" ] && ! [ -d "$(readlink "$claim")" ]; then rm -f "$claim"; fi
        ln -s -T "$DIR" "$claim" 2>/dev/null || continue
        use_tag "$tag"
        if ip link show "$BRIDGE" >/dev/null 2>&1; then # left by a cluster that was killed
            rm -f "$claim"
            continue
        fi
        echo "$tag" >"$DIR/tag"
        return 0
    done
    fail "250 clusters are up"
}

is_ours() { # PID: lives, is no zombie, and works for this directory
    [ -n "$1" ] && [ -r "/proc/$1/stat" ] || return 1
    [ "$(sed 's/.*) //' "/proc/$1/stat" | cut -c1)" != Z ] || return 1
    tr '\0' '\n' <"/proc/$1/cmdline" | grep -qF "$DIR/" && return
    [ "$(cat "/proc/$1/comm")" = slurmstepd ] && tr '\0' '\n' <"/proc/$1/environ" | grep -qxF "SLURM_CONF=$SLURM_CONF"
}

pid_in() { cat "$1" 2>/dev/null || true; }

stop() { # PID...: TERM, and KILL after five seconds
    local pid
    for pid in "$@"; do
        is_ours "$pid" || continue
        kill -TERM "$pid" 2>/dev/null || continue
        for _ in $(seq 50); do
            is_ours "$pid" || break
            sleep 0.1
        done
        is_ours "$pid" && kill -KILL "$pid" 2>/dev/null
    done
    return 0
}

down() {
    local pid path
    [ -f "$DIR/tag" ] || return 0
    use_tag "$(cat "$DIR/tag")"
    if is_ours "$(pid_in "$DIR/slurmctld.pid")"; then
        timeout 10 scancel --state=PENDING --user=root || true # so that nothing new begins
        timeout 10 scancel --user=root || true                 # jobs outlive their slurmd
        for _ in $(seq 80); do
            [ -n "$(timeout 5 squeue -h -o %A)" ] || break
            sleep 0.1
        done
    fi
    stop "$(pid_in "$DIR/slurmctld.pid")"
    for path in "$DIR"/slurmd.*.pid; do
        stop "$(pid_in "$path")"
    done
    for path in /proc/[0-9]*; do
        pid=${path#/proc/}
        if [ "$(cat "$path/comm" 2>/dev/null)" = slurmstepd ]; then stop "$pid"; fi
    done
    stop "$(pid_in "$DIR/munged.pid")"
    if [ -f "$DIR/namespaces" ]; then
        for n in $(seq "$NODES"); do
            ip link del "${NODE}v$n" 2>/dev/null || true
            ip netns del "$NODE$n" 2>/dev/null || true
        done
        ip link del "$BRIDGE" 2>/dev/null || true
    fi
    for path in /sys/fs/cgroup/*/slurm_"$NODE"*; do
        [ -d "$path" ] && find "$path" -depth -type d -exec rmdir {} + 2>/dev/null
    done
    rm -f "${TMPDIR:-/tmp}/shardwrite-slurm-tag-$TAG"
    return 0
}

can_have_namespaces() {
    local ok=1
    ip netns add "swtp$TAG" 2>/dev/null && ip link add "swtp${TAG}v" type veth peer name eth0 netns "swtp$TAG" 2>/dev/null \
        && unshare --uts --mount true 2>/dev/null || ok=
    ip link del "swtp${TAG}v" 2>/dev/null || true
    ip netns del "swtp$TAG" 2>/dev/null || true
    [ -n "$ok" ]
}

can_limit_memory() { # version 1 of control groups, which is what Debian's SLURM 22.05 and containers agree on
    local controller
    for controller in memory freezer; do
        mkdir "/sys/fs/cgroup/$controller/swtp$TAG" 2>/dev/null && rmdir "/sys/fs/cgroup/$controller/swtp$TAG" || return 1
    done
}

make_network() {
    local n
    touch "$DIR/namespaces"
    ip link add "$BRIDGE" type bridge
    ip addr add "$SUBNET.254/24" dev "$BRIDGE"
    ip link set "$BRIDGE" up
    cat /etc/hosts >"$DIR/hosts"
    for n in $(seq "$NODES"); do
        ip netns add "$NODE$n"
        ip link add "${NODE}v$n" type veth peer name eth0 netns "$NODE$n"
        ip link set "${NODE}v$n" master "$BRIDGE" up
        ip -n "$NODE$n" addr add "$SUBNET.$n/24" dev eth0
        ip -n "$NODE$n" link set eth0 up
        ip -n "$NODE$n" link set lo up
        echo "$SUBNET.$n $NODE$n" >>"$DIR/hosts"
    done
}

write_configuration() { # NAMESPACES LIMITS
    local n controller=127.0.0.1 tracking=proctrack/linuxproc tasks=task/none
    [ -z "$1" ] || controller=$SUBNET.254
    [ -z "$2" ] || { tracking=proctrack/cgroup; tasks=task/cgroup; }
    cat >"$DIR/slurm.conf" <<CONF
ClusterName=shardwrite
SlurmctldHost=$(hostname -s)($controller)
SlurmctldPort=$BASE_PORT
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
# requeued jobs wait until the old credential has expired: two minutes by default, and 5 seconds at least
AuthInfo=socket=$DIR/munge/socket,cred_expire=5
StateSaveLocation=$DIR/state
SlurmdSpoolDir=$DIR/spool/%n
SlurmctldPidFile=$DIR/slurmctld.pid
SlurmdPidFile=$DIR/slurmd.%n.pid
SlurmctldLogFile=$DIR/log/slurmctld
SlurmdLogFile=$DIR/log/slurmd.%n
ProctrackType=$tracking
TaskPlugin=$tasks
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
SlurmdParameters=config_overrides
TaskProlog=$DIR/task-prolog
Epilog=$DIR/epilog
PropagateResourceLimits=NONE
ReturnToService=2
MpiDefault=none
KillWait=5
CompleteWait=0
MinJobAge=3600
SlurmdTimeout=20
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
$(for n in $(seq "$NODES"); do
        if [ -n "$1" ]; then
            echo "NodeName=$NODE$n NodeAddr=$SUBNET.$n Port=$((BASE_PORT + 1)) CPUs=$CPUS RealMemory=$MEMORY_MB"
        else
            echo "NodeName=$NODE$n NodeHostname=$(hostname -s) NodeAddr=127.0.0.1 Port=$((BASE_PORT + n)) CPUs=$CPUS RealMemory=$MEMORY_MB"
        fi
    done)
PartitionName=main Nodes=ALL Default=YES PriorityTier=5 PreemptMode=OFF MaxTime=INFINITE
PartitionName=low Nodes=ALL PriorityTier=1 PreemptMode=REQUEUE MaxTime=INFINITE
PartitionName=high Nodes=ALL PriorityTier=10 PreemptMode=OFF MaxTime=INFINITE
CONF
    { # the plugin is named even where it is not used: its search fails where no control groups are mounted
        echo "CgroupPlugin=cgroup/v1"
        [ -z "$2" ] || echo "ConstrainRAMSpace=yes"
    } >"$DIR/cgroup.conf"
    cat >"$DIR/task-prolog" <<'PROLOG'
#!/bin/sh
mkdir -p "LOCAL/job_$SLURM_JOB_ID"
echo "export SLURM_TMPDIR=LOCAL/job_$SLURM_JOB_ID"
PROLOG
    cat >"$DIR/epilog" <<'EPILOG'
#!/bin/sh
case "$SLURM_JOB_ID" in '' | *[!0-9]*) exit 0 ;; esac
rm -rf "LOCAL/job_$SLURM_JOB_ID"
EPILOG
    sed -i "s|LOCAL|$DIR/local|" "$DIR/task-prolog" "$DIR/epilog"
    chmod 755 "$DIR/task-prolog" "$DIR/epilog"
}

start_node() { # N NAMESPACES
    if [ -z "$2" ]; then
        slurmd -f "$SLURM_CONF" -N "$NODE$1"
        return
    fi
    # not `ip netns exec`, which would mount a /sys without control groups
    nsenter --net="/run/netns/$NODE$1" unshare --uts --mount --propagation private sh -ec "
        # images that others have mounted would stay mounted as long as this node lives
        sed -n 's,^/dev/loop[0-9]* \(/[^ ][^ ]*\) .*,\1,p' /proc/self/mounts | sort -r | xargs -r umount --lazy
        hostname $NODE$1
        mount --bind '$DIR/scratch/$NODE$1' '$DIR/local'
        mount --bind '$DIR/hosts' /etc/hosts
        exec slurmd -f '$SLURM_CONF' -N $NODE$1"
}

ready_nodes() { # a star in the state says that the node has not been heard from
    timeout 5 sinfo -h -p main -N -o '%N %t' 2>/dev/null | grep -c ' idle$' || true
}

up() {
    local n namespaces='' limits=''
    umask 022
    down
    rm -rf "$DIR"
    mkdir -p "$DIR"/{munge,state,spool,log,local,scratch}
    claim_tag
    for n in $(seq "$NODES"); do mkdir -p "$DIR/spool/$NODE$n" "$DIR/scratch/$NODE$n"; done
    can_have_namespaces && namespaces=1
    can_limit_memory && limits=1
    [ -z "$namespaces" ] || make_network
    write_configuration "$namespaces" "$limits"
    mungekey --create --keyfile="$DIR/munge/key"
    munged --key-file="$DIR/munge/key" --socket="$DIR/munge/socket" --pid-file="$DIR/munged.pid" \
        --log-file="$DIR/log/munged" --seed-file="$DIR/munge/seed"
    slurmctld -f "$SLURM_CONF" || fail "slurmctld: $(tail -3 "$DIR/log/slurmctld")"
    for n in $(seq "$NODES"); do
        start_node "$n" "$namespaces" || fail "slurmd $NODE$n: $(tail -3 "$DIR/log/slurmd.$NODE$n")"
    done
    echo "export SLURM_CONF=$SLURM_CONF NAMESPACES=$namespaces MEMORY_LIMITS=$limits" >"$DIR/env.sh"
    for _ in $(seq 150); do
        [ "$(ready_nodes)" != "$NODES" ] || return 0
        sleep 0.1
    done
    sinfo -N -l >&2 || true
    fail "nodes were not ready in 15 s: $(tail -n 3 "$DIR"/log/*)"
}

case $ACTION in
    up) up ;;
    down)
        down
        rm -rf --one-file-system "$DIR"
        ;;
    *) fail "up or down, not $ACTION" ;;
esac
