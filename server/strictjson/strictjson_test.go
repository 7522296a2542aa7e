package strictjson

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func TestParse(t *testing.T) {
	for _, tt := range []struct{ text, want string }{
		{"", "1:1: not JSON: the text ends too early"},
		{"{", "1:2: not JSON: the text ends too early"},
		{"{\n\"a\" 1}", "2:5: not JSON: "},
		{"{}\n {}", "2:2: there is text after the object"},
		{"{\"a\":\n [1, null]}", "2:6: null says nothing"},
		{strings.Repeat("[", 100_000), "1:10: nested more than 8 levels"},
		{"\xff", "1:"},
		{"{\"a\": 1,\n \"a\": 2}", `2:2: key "a" is given twice`},
		{"{\"a\": 1,\n \"\\u0061\": 2}", `2:2: key "a" is given twice`},
	} {
		_, err := Parse([]byte(tt.text))
		if err = Locate([]byte(tt.text), err); err == nil || !strings.HasPrefix(err.Error(), tt.want) {
			t.Errorf("%.40q: %v, not %s", tt.text, err, tt.want)
		}
	}
}

func TestObject(t *testing.T) {
	for _, tt := range []struct{ text, want string }{
		{`[]`, "1:1: it must be an object"},
		{`{"A": 1}`, `1:2: unknown key "A" in it; known here: a, b`},
	} {
		n, err := Parse([]byte(tt.text))
		if err == nil {
			_, err = n.Object("it", "a", "b")
		}
		if err = Locate([]byte(tt.text), err); err == nil || err.Error() != tt.want {
			t.Errorf("%q: %v, not %s", tt.text, err, tt.want)
		}
	}
	n, err := Parse([]byte(` {"b": [true, {"x": 1.50}] , "a": "é"}`))
	if err != nil {
		t.Fatal(err)
	}
	members, err := n.Object("it", "a", "b")
	if err != nil || len(members) != 2 {
		t.Fatalf("%+v %v", members, err)
	}
	if b := members[0]; string(b.Raw) != `[true, {"x": 1.50}]` || b.At != 2 || b.Node.At != 7 || len(b.Items) != 2 || b.Items[1].Members[0].Value != json.Number("1.50") {
		t.Errorf("%+v", b)
	}
	if a := members[1]; a.Value != "é" || string(a.Raw) != `"é"` {
		t.Errorf("%+v", a)
	}
}

func TestRead(t *testing.T) {
	dir := t.TempDir()
	fifo := filepath.Join(dir, "fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, []byte("12345678"), 0o600); err != nil {
		t.Fatal(err)
	}
	if text, err := Read(file, 8); err != nil || string(text) != "12345678" {
		t.Errorf("%s %v", text, err)
	}
	if _, err := Read(file, 7); err == nil || !strings.Contains(err.Error(), "larger than 7 bytes") {
		t.Error(err)
	}
	if err := os.Chmod(file, 0o602); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{file: "anyone may write", fifo: "not a regular file", dir: "not a regular file", dir + "/none": "no such file"} {
		if _, err := Read(path, 8); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", path, err)
		}
	}
}
