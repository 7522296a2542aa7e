// Package rootfs makes a root file system of an image's layers, each unpacked once, by overlayfs. The layers and what they hold
// are taken as hostile. It works on Linux, as root.
package rootfs
