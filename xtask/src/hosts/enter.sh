# Runs a command in another root as if it were the machine's own: sh enter.sh ROOT UID COMMAND, in a mount namespace of its own.
# By pivot_root, because the kernel lets no process in a chroot make user namespaces.
set -e
root=$1 user=$2; shift 2
kit=/var/tmp/outpost-hosts
mount --bind "$root" "$root"
mkdir -p "$root/proc" "$root/sys" "$root/dev" "$root/old" "$root/run" "$root/home/dev" "$root$kit"
mount -t proc proc "$root/proc"
mount --rbind /sys "$root/sys"
mount --rbind /dev "$root/dev"
mount -t tmpfs -o mode=755 tmpfs "$root/run"
mount --bind "$KIT_FROM" "$root$kit"
chown 1000:1000 "$root/home/dev"
cd "$root"
pivot_root . old
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin OUTPOST=$kit/outpost
umount -l /old
cd /
if [ "$user" = 0 ]; then HOME=/root exec "$@"; fi
if setpriv --reuid="$user" --clear-groups true 2>/dev/null; then
    HOME=/home/dev exec setpriv --reuid="$user" --regid="$user" --clear-groups "$@"
fi
exec su -s /bin/sh dev -c "$*"
