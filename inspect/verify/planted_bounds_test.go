package verify_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/inspect/verify"
	"github.com/slimctl/slimctl/internal/need"
)

// Images that are made to have more than is read do not pass, say so, and are held against the profile in seconds.
func TestWhatIsTooMuchIsFound(t *testing.T) {
	many := func(n int, format string) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, strings.ReplaceAll(format, "#", "%[1]d"), i)
		}
		return b.String()
	}
	c := closeLine(t, "B")
	for name, tt := range map[string]struct {
		plant
		rule, text string
	}{
		"programs":  {plant{files: []image.File{text(conf, "[supervisord]\n"+many(20_000, "[program:p#]\ncommand=/x #\n"))}}, "not-understood", "more than 500 sections"},
		"servers":   {plant{files: []image.File{text(hubConf, `{"mcpServers": {`+many(50_000, "\"#\":{},\n")+`"x":{}}}`)}}, "not-understood", "50001 servers"},
		"members":   {plant{files: []image.File{text("/etc/group", "root:x:0:"+many(200_000, "u#,")+"\n")}}, "not-understood", "more than 200 members"},
		"cases":     {plant{files: []image.File{serverWith(t, many(64, "error_page 404 = /a#;\n")+many(1900, "location /a# { root /x; }\n"))}}, "not-understood", "more than 10000 cases"},
		"locations": {plant{files: []image.File{serverWith(t, many(15_000, "location /a# { return 403; }\n"))}}, "not-understood", "more than 2000 locations"},
		"packages":  {plant{files: []image.File{text("/var/lib/dpkg/status", many(100_000, "Package: p#\nStatus: install ok installed\nVersion: 1\n\n"))}}, "not-understood", "more than 20000 packages"},
		"renderings": {plant{files: []image.File{image.Bytes("/opt/gem/run.sh", 0o755, []byte("#!/bin/bash\n"+many(4000, "envsubst </opt/gem/run.sh >/o#\n")+
			"exec supervisord -c /opt/gem/supervisord.conf\n"))}, config: starts("/opt/gem/run.sh")}, "not-understood", "more than 500 files are made from templates"},
	} {
		t.Run(name, func(t *testing.T) {
			var r *verify.Report
			if took := need.CPU(t, func() { r = check(t, c.input(t, tt.plant, "linux/amd64")) }); took > 10*time.Second {
				t.Errorf("it took %s", took)
			}
			if r.Passed {
				t.Error("it passes")
			}
			for _, f := range r.Findings {
				if f.Rule == tt.rule && strings.Contains(f.Message, tt.text) {
					return
				}
			}
			t.Errorf("%s doesn't say %q; there are %v", tt.rule, tt.text, ruleIDs(r))
		})
	}
}
