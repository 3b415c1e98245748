# A virtual machine with Debian, systemd and sshd, below the present directory: root, vm.img, vmlinuz, initrd.gz, key. The arguments are the
# architecture as Debian calls it, and a static busybox of this machine. Needs root, debootstrap, e2fsprogs, openssh-client; for arm64
# qemu-user-static. Made once.
set -e
arch=$1 busybox_here=$2
[ -f vm.img ] && [ -f initrd.gz ] && exit 0
rm -rf root new && mkdir new
if [ "$arch" = "$(dpkg --print-architecture)" ]; then
    cp -a ../bookworm/. new/
    busybox=$busybox_here
else
    # Its programs are run by qemu, through the kernel's table of formats.
    [ -e /proc/sys/fs/binfmt_misc/register ] || mount -t binfmt_misc none /proc/sys/fs/binfmt_misc
    [ -e /proc/sys/fs/binfmt_misc/qemu-aarch64 ] || printf '%s' ':qemu-aarch64:M::\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00:\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff:/usr/bin/qemu-aarch64-static:F' >/proc/sys/fs/binfmt_misc/register
    debootstrap --arch="$arch" --variant=minbase --include=perl-base,procps,git,python3,busybox-static bookworm new
    chroot new useradd -m -u 1000 -s /bin/bash dev
    busybox=new/bin/busybox
fi
cp /etc/resolv.conf new/etc/resolv.conf 2>/dev/null || true
printf '#!/bin/sh\nexit 101\n' >new/usr/sbin/policy-rc.d && chmod +x new/usr/sbin/policy-rc.d
chroot new apt-get -q update
chroot new env DEBIAN_FRONTEND=noninteractive apt-get -q install -y --no-install-recommends \
    systemd systemd-sysv dbus dbus-user-session libpam-systemd openssh-server iproute2 udev kmod "linux-image-cloud-$arch"
chroot new apt-get clean
rm -f new/usr/sbin/policy-rc.d new/var/lib/apt/lists/*_Packages
K=$(ls new/lib/modules | tail -n 1)
cp "new/boot/vmlinuz-$K" vmlinuz
[ -f key ] || ssh-keygen -q -t ed25519 -N '' -f key
chroot new id dev >/dev/null 2>&1 || chroot new useradd -m -u 1000 -s /bin/bash dev
for home in root home/dev; do
    mkdir -p "new/$home/.ssh"
    cp key.pub "new/$home/.ssh/authorized_keys"
    chmod 700 "new/$home/.ssh"
done
chroot new chown -R dev:dev /home/dev
printf '[Match]\nName=e*\n[Network]\nDHCP=yes\n' >new/etc/systemd/network/e.network
chroot new systemctl enable systemd-networkd ssh
rm -rf ird && mkdir -p ird/bin ird/mod ird/dev ird/proc ird/sys ird/new && cp "$busybox" ird/bin/busybox
for name in virtio_pci virtio_blk ext4 virtio_net crc32c_generic; do
    chroot new modprobe -S "$K" --show-depends $name | sed -n 's/^insmod \([^ ]*\).*/\1/p'
done | awk '!seen[$0]++' | while read -r file; do
    cp "new$file" ird/mod/ && basename "$file" >>ird/list
done
cat >ird/init <<'I'
#!/bin/busybox sh
/bin/busybox mount -t proc p /proc; /bin/busybox mount -t sysfs s /sys; /bin/busybox mount -t devtmpfs d /dev
for m in $(/bin/busybox cat /list); do /bin/busybox insmod /mod/$m 2>/dev/null; done
i=0; while [ ! -b /dev/vda ] && [ $i -lt 50 ]; do /bin/busybox sleep 0.2; i=$((i + 1)); done
/bin/busybox mount -t ext4 /dev/vda /new
/bin/busybox umount /proc; /bin/busybox umount /sys; /bin/busybox mount --move /dev /new/dev
exec /bin/busybox switch_root /new /sbin/init
I
chmod +x ird/init
(cd ird && find . | "$busybox_here" cpio -o -H newc | gzip -1 >../initrd.new)
rm -f vm.new && truncate -s 2500M vm.new && mke2fs -q -t ext4 -d new vm.new
mv new root && mv vm.new vm.img && mv initrd.new initrd.gz
