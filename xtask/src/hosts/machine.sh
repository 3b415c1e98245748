# A virtual machine with Debian, systemd and sshd, below the present directory: vm.img, vmlinuz, initrd.gz, key. Needs root, debootstrap,
# e2fsprogs, busybox-static, openssh-client. Made once.
set -e
[ -f vm.img ] && [ -f initrd.gz ] && exit 0
[ -d rootfs/bin ] || debootstrap --variant=minbase --include=perl-base,procps,git,python3 bookworm rootfs
rm -rf vmroot && cp -a rootfs vmroot
chroot vmroot env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
    systemd systemd-sysv dbus dbus-user-session libpam-systemd openssh-server iproute2 udev kmod linux-image-cloud-amd64
K=$(ls vmroot/lib/modules | tail -n 1)
cp "vmroot/boot/vmlinuz-$K" vmlinuz
[ -f key ] || ssh-keygen -q -t ed25519 -N '' -f key
chroot vmroot useradd -m -s /bin/bash dev
for home in root home/dev; do
    mkdir -p "vmroot/$home/.ssh"
    cp key.pub "vmroot/$home/.ssh/authorized_keys"
    chmod 700 "vmroot/$home/.ssh"
done
chroot vmroot chown -R dev:dev /home/dev
printf '[Match]\nName=e*\n[Network]\nDHCP=yes\n' >vmroot/etc/systemd/network/e.network
chroot vmroot systemctl enable systemd-networkd ssh
rm -f vm.img && truncate -s 2000M vm.img && mke2fs -q -t ext4 -d vmroot vm.img
rm -rf ird && mkdir -p ird/bin ird/mod ird/dev ird/proc ird/sys ird/new && cp /bin/busybox ird/bin/
for name in virtio_pci virtio_blk ext4 virtio_net crc32c_generic; do
    chroot vmroot modprobe -S "$K" --show-depends $name | sed -n 's/^insmod \([^ ]*\).*/\1/p'
done | awk '!seen[$0]++' | while read -r file; do
    cp "vmroot$file" ird/mod/ && basename "$file" >>ird/list
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
(cd ird && find . | busybox cpio -o -H newc | gzip -1 >../initrd.gz)
