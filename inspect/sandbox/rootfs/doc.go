// Package rootfs makes a root file system of an image's layers with overlayfs; each layer is unpacked once. It treats
// the layers and their content as hostile. It works on Linux, as root.
package rootfs
