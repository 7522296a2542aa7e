// Package rootfs makes a root file system of an image's layers, each unpacked once: with overlayfs, or where that is refused
// by copying. The layers and what they hold are taken as hostile. It works on Linux, as root.
package rootfs
