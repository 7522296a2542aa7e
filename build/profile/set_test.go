package profile

import (
	"strings"
	"testing"
	"testing/fstest"
)

func TestSet(t *testing.T) {
	builtin := fstest.MapFS{"p.yaml": {Data: []byte(minimal)}}
	for _, c := range []struct {
		name, set, want, err string
	}{
		{name: "new key", set: "config.env.TZ=UTC", want: "TZ: UTC"},
		{name: "number stays text", set: "config.env.PORT=8080", want: `PORT: "8080"`},
		{name: "value with = and dots", set: "config.env.OPTS=a=b.c", want: "OPTS: a=b.c"},
		{name: "quoted key", set: `config.labels."org.example.a"=x`, want: "org.example.a: x"},
		{name: "list", set: "platforms=[linux/arm64]", want: "- linux/arm64"},
		{name: "true", set: "base.acceptUnknownLine=true", want: "acceptUnknownLine: true"},
		{name: "replaces", set: "base.reference=example.org/other:1", want: "reference: example.org/other:1"},
		// A mistake is told at the flag, and at no line of the file.
		{name: "unknown key", set: "config.evn.A=b", err: "--set config.evn.A=b: config.evn: unknown key; valid keys: env"},
		{name: "unknown key beside others", set: "config.healthcheck.tst=x", err: "--set config.healthcheck.tst=x: config.healthcheck.tst: unknown key"},
		{name: "wrong value", set: "platforms=[plan9/386]", err: "--set platforms=[plan9/386]: platforms[0]: "},
		{name: "twice", set: "platforms=[linux/arm64, linux/arm64]", err: `platforms[1]: "linux/arm64" is here twice`},
		{name: "no value", set: "config", err: "--set config: want KEY.KEY=VALUE"},
		{name: "empty key", set: "config..a=b", err: "want KEY.KEY=VALUE"},
		{name: "open quotes", set: `config."a=b`, err: "quotes"},
		{name: "into a list", set: "platforms.a=b", err: "isn't a mapping"},
		{name: "broken flow", set: "platforms=[a", err: "--set platforms=[a: not YAML: "},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, err := Loader{Builtin: builtin, Set: []string{c.set}}.Load("p")
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) || strings.Contains(err.Error(), "p.yaml") {
					t.Fatalf("error %v, want one that says %q", err, c.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			data, err := p.Marshal()
			if err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(string(data), c.want) {
				t.Errorf("effective profile lacks %q:\n%s", c.want, data)
			}
		})
	}
}

const minimal = `version: 1
name: p
base: {reference: example.org/base, lines: [B]}
platforms: [linux/amd64]
payload: {agentBrowser: {version: 0.8.10, integrity: "sha512-tL5ZfnAa+vZQfEUkEVyyZQFzF6+r9nE07UnjCFMhNFZA709dRc9KYIK1AOXwzBKNHrnxrCaAMgeNJin7NO7j5g=="}}
expect: {programs: [], routes: [], mcpServers: [browser_shell], tools: [browser-shell]}
`
