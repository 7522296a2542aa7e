package policy

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestSkillIsTrue: each argv that the skill shows is admitted, in both
// generations, and each default command is shown.
func TestSkillIsTrue(t *testing.T) {
	b, err := os.ReadFile(filepath.FromSlash("../../assets/skill/SKILL.md"))
	if err != nil {
		t.Fatal(err)
	}
	p := Default()
	examples := regexp.MustCompile(`\["[a-z][^\]]*\]`).FindAllString(string(b), -1)
	if len(examples) < 20 {
		t.Fatalf("found %d examples only", len(examples))
	}
	for _, e := range examples {
		var argv []string
		if err := json.Unmarshal([]byte(e), &argv); err != nil {
			t.Errorf("%s: %v", e, err)
			continue
		}
		for _, gen := range []Generation{Node, Native} {
			if _, r := p.Check(gen, argv); r != nil {
				t.Errorf("%s: %v", e, r)
			}
		}
	}
	for _, c := range p.Commands {
		if !strings.Contains(string(b), c) {
			t.Errorf("%s is not shown", c)
		}
	}
}
