package packages

import (
	"encoding/json"
	"fmt"
	"path"
	"strings"
)

// npm reads the npm package whose package.json is at p. Node finds a package by its directory in node_modules. Without
// a name a package has that directory's name there, and is not a package elsewhere.
func (r *reader) npm(p string) {
	dir, module := path.Dir(p), isModule(p)
	var manifest struct {
		Name    string `json:"name"`
		Version string `json:"version"`
	}
	if text, ok := r.files[p]; ok {
		if err := json.Unmarshal([]byte(strings.TrimPrefix(text, "\ufeff")), &manifest); err != nil && module {
			r.addNote(p, 0, fmt.Sprintf("no package.json that npm would read: %v", err))
		}
	}
	if manifest.Name == "" && !module {
		return
	}
	if manifest.Name == "" {
		manifest.Name = dir[strings.LastIndex(dir, nodeModules)+len(nodeModules):]
	}
	pkg := Package{Kind: NPM, Name: manifest.Name, Version: manifest.Version, Dir: dir, Place: r.img.Place(p, 0)}
	if n, ok := r.addPackage(pkg, ""); ok {
		r.npmDirs[dir] = n
		if module {
			r.db.modules[dir] = n
		}
	}
}
