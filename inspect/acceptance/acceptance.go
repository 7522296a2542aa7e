// Package acceptance boots an image and tries what its profile promises: slimctl verify --run.
package acceptance
