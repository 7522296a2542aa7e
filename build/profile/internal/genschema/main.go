// Command genschema writes the JSON Schema of profiles to the file that its one argument names.
package main

import (
	"log"
	"os"

	"github.com/slimctl/slimctl/build/profile"
)

func main() {
	if len(os.Args) != 2 {
		log.Fatal("usage: genschema FILE")
	}
	data, err := profile.Schema()
	if err != nil {
		log.Fatal(err)
	}
	if err := os.WriteFile(os.Args[1], data, 0o644); err != nil {
		log.Fatal(err)
	}
}
