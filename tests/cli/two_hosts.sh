#!/bin/bash
# Two hosts on one machine: network namespaces with addresses and names of their own, joined by a cable.
#
#     two_hosts.sh MPIRUN RANKS_OF_EACH COMMAND...
#
# runs the command by mpirun on both, as many ranks on each. Exit code 77, with the reason on standard error,
# where this machine does not allow it.
set -euo pipefail

mpirun="$1" ranks="$2"
shift 2
a="kerf-a-$$" b="kerf-b-$$" work="$(mktemp -d)"
trap 'ip netns del "$a" 2>/dev/null; ip netns del "$b" 2>/dev/null; rm -rf "$work"' EXIT

cannot() {
  echo "two_hosts: $*" >&2
  exit 77
}
command -v ip >/dev/null || cannot "there is no ip (Debian: iproute2)"
why="$(ip netns add "$a" 2>&1 && ip netns add "$b" 2>&1 && unshare -u true 2>&1)" ||
  cannot "network namespaces are not allowed here: $why"
why="$(ip -n "$a" link add cable type veth peer name cable netns "$b" 2>&1)" || cannot "no veth pair: $why"
for host in "$a 10.77.0.1" "$b 10.77.0.2"; do
  read -r name address <<<"$host"
  ip -n "$name" address add "$address/24" dev cable
  ip -n "$name" link set lo up
  ip -n "$name" link set cable up
done

# What mpirun calls in place of ssh: HOST COMMAND...
cat >"$work/agent" <<END
#!/bin/bash
shift
exec ip netns exec "$b" unshare -u bash -c 'hostname "\$0"; exec bash -c "\$1"' "$b" "\$*"
END
chmod +x "$work/agent"

ip netns exec "$a" unshare -u bash -c 'hostname "$0"; exec "$@"' "$a" \
  timeout -k 5 120 "$mpirun" --mca plm_rsh_agent "$work/agent" --mca btl_tcp_if_include 10.77.0.0/24 \
  --mca oob_tcp_if_include 10.77.0.0/24 --host "10.77.0.1:$ranks,10.77.0.2:$ranks" -np $((2 * ranks)) "$@"
