// Command rm implements `rm -rf -- PATH...` for test images without other programs.
package main

import (
	"fmt"
	"os"
)

func main() {
	if len(os.Args) < 4 || os.Args[1] != "-rf" || os.Args[2] != "--" {
		fmt.Fprintf(os.Stderr, "rm: want -rf -- PATH..., got %q\n", os.Args[1:])
		os.Exit(2)
	}
	for _, p := range os.Args[3:] {
		if err := os.RemoveAll(p); err != nil {
			fmt.Fprintln(os.Stderr, "rm:", err)
			os.Exit(1)
		}
	}
}
