package output

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"html"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/slimctl/slimctl/internal/need"
)

func newRedactor(t testing.TB, keys, patterns, secrets []string) *Redactor {
	t.Helper()
	r, err := NewRedactor(keys, patterns, secrets)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

const (
	envSecret = `s3"cr<e>t/Env value+1`
	b64ish    = "Zm9vYmFyYmF6cXV4Zm9vYmFyYmF6cXV4"
	jwtText   = "ey|JhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N"
)

// planted: what stands between « and » must go, the rest must stay. A | is
// taken out, so that scanners of source code find nothing here.
var planted = []string{
	// by key, in text
	`password: «hunter2»`,
	`Password: «hunter2», user: bob`,
	`PASSWORD=«hunter2»`,
	`db_password=«a,b&c#d» next`,
	`DBPASSWORD=«hunter2»`,
	`{"password": "«hunter2»", "user": "bob"}`,
	`{'passwd':'«hunter2»'}`,
	`{\"password\":\"«hunter two»\"}`,
	`"apiKey" : "«abc»"`,
	`api_key => «abc»`,
	`api-key: «abc def»` + "\x00", // see below: one word only
	`API key: «k1-abc»`,
	`Private key: «abcdef»`,
	`https://example.com/cb?token=«abc»&state=1#top`,
	`https://example.com/cb?x=1&access_token=«abc»#top`,
	`https://example.com/?next=%2Fa%3Ftoken%3D«abc» more`,
	`https://example.com/?X-Amz-Credential=«me%2F2026»&X-Amz-Signature=«0f1e2d3c4b5a69788796a5b4c3d2e1f0»`,
	`session=«a1b2c3d4e5f6»; path=/`,
	`Set-Cookie: «sid=abc; HttpOnly; Path=/»`,
	`Cookie: «a="x y"; b=z»` + "\nHost: example.com",
	`-H 'Cookie: «a=b; c=d»' https://example.com`,
	`Authorization: «Digest username="bob", response="abc"»`,
	`authorization: «token abc»`,
	`Proxy-Authorization: «Basic Zm9v»`,
	`X-Api-Key: «abc def»`,
	`PHPSESSID=«0123456789abcdef0123456789abcdef»`,
	`user[password]=«hunter2»`,
	`client_secret=«abc»`,
	`clientSecret: «abc»,`,
	`csrfToken="«abc»"`,
	`password:="«hunter2»"`,
	`credentials = «bob:pw»`,
	`run --password=«abc» now`,
	`AccountName=x;AccountKey=«abc+/==»`,
	`aws_secret_access_key = «wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY»`,
	`secret_key_base: «abc»`,
	`Kennwort: «geheim»`,
	`token=«x[1]»`,
	`- textbox "Password": «hunter2»`,
	`- textbox "Password" [ref=e2]: «hunter two»` + "\n- button \"Go\" [ref=e3]",
	`  - textbox "API key" [active, ref=e2]: «k 1»` + "\n  - link \"x\" [ref=e4]",
	`- textbox "Enter your PIN" [ref=e2]: «1234»`,
	"  - textbox \"Password\" [ref=e3]: [redacted]\n    - generic\n      - StaticText «\"hunter two\"»\n  - link \"x\" [ref=e4]",
	"- textbox \"Password\" [ref=e2]:\n    - /placeholder: Yours\n    - text: «hunter two»\n- link \"x\" [ref=e3]",
	`- StaticText "Your token: «abc123»"`,
	`- button "Copy token: «abc123»" [ref=e3]`,
	`- text: Cookie: «a=b» [ref=e2]`,
	// by shape
	"x " + jwtText,
	`"«` + jwtText + `»"`,
	`id=«A|KIAIOSFODNN7EXAMPLE» x`,
	`x«A|SIAIOSFODNN7EXAMPLE» x`,
	`«g|hp_abcdefghijklmnopqrstuvwxyz0123456789»`,
	`glued«g|ho_abcdefghijklmnopqrstuvwxyz0123456789» x`,
	`(«g|hs_abcdefghijklmnopqrstuvwxyz0123456789»)`,
	`«g|ithub_pat_11ABCDEFG0abcdefghijkl_mnopqrstuvwxyz»`,
	`«s|k-proj-abcdefghijklmnopqrst1234»`,
	`«s|k-abcdefghijklmnopqrstuvwxyz»`,
	`«s|k-ant-api03-abcdefghijkl1234-xyz»`,
	`«x|oxb-123456789012-abcdefghijkl»`,
	`«x|oxp-123456789012-abcdefghijkl».`,
	`«A|IzaSyA1234567890abcdefghijklmnopqrstuv»`,
	`«g|lpat-abcdefghij0123456789»`,
	`«n|pm_abcdefghijklmnopqrstuvwxyz0123456789»`,
	`«s|k_live_abcdefghijklmnop»`,
	`«S|G.abcdefghijklmnop1234.abcdefghijklmnop1234»`,
	`hooks.slack.com/services/«T00000000/B00000000/XXXXXXXXXXXXXXXX»`,
	"«-----BEGIN RSA PRIVATE KEY-----\nMIIEow\n" + b64ish + "\n-----END RSA PRIVATE KEY-----» after",
	`"«-----BEGIN PRIVATE KEY-----\nMIIEow\n-----END PRIVATE KEY-----»\n"`,
	"«-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXk»",
	`«-----BEGIN PGP PRIVATE KEY BLOCK----- abc -----END PGP PRIVATE KEY BLOCK-----»`,
	`postgres://«bob:hunter2»@db.example/x`,
	`https://«bob:p@ss»@example.com/x?y=1`,
	`redis://«:hunter2»@cache:6379`,
	`https://«x0123456789abcdefx»@example.com/`,
	`Bearer «abc123def456»`,
	`bearer «abcdefghijklmnopqrstuvwxyz»`,
	`Bearer «abcd1234»`,
	`«s|k-lf-ad4f2e10-1234-4f5a-9abc-0123456789ab»`,
	`postgres://«bob@corp.example:hunter2»@db.example/x`,
	`{\"password\":\"«it's me»\"}`,
	"password=`«x »[ref=e3]--token=`«a1b2c3»",
	`Basic «dXNlcjpwYXNz»`,
	`basic «dXNlcjpwYXNzMTI=»`,
	// by value
	`x«` + envSecret + `»x`,
	`x=«` + url.QueryEscape(envSecret) + `» y`,
	`x=«` + url.PathEscape(envSecret) + `» y`,
	`x=«` + lowerHex(url.QueryEscape(envSecret)) + `» y`,
	`<b>«` + html.EscapeString(envSecret) + `»</b>`,
	`"«s3\"cr<e>t/Env value+1»"`,
	`"«s3\"cr<e>t\/Env value+1»"`,
	`x «` + hex.EncodeToString([]byte(envSecret)) + `» y`,
	// a custom key and pattern
	`Tresor: «auf»`,
	`my tresor=«auf» x`,
	`ticket «TKT-12345» x`,
}

func plant(s string) (text, want string, secrets []string) {
	s = strings.ReplaceAll(s, "|", "")
	if rest, ok := strings.CutSuffix(s, "\x00"); ok {
		s = strings.Replace(rest, " def»", "» def", 1)
	}
	if !strings.Contains(s, "«") {
		s = strings.Replace(s, "ey", "«ey", 1) + "»"
	}
	text = strings.NewReplacer("«", "", "»", "").Replace(s)
	for {
		before, rest, ok := strings.Cut(s, "«")
		want += before
		if !ok {
			return text, want, secrets
		}
		secret, after, _ := strings.Cut(rest, "»")
		secrets = append(secrets, secret)
		want, s = want+Marker, after
	}
}

func tableRedactor(t testing.TB) *Redactor {
	return newRedactor(t, []string{"tresor"}, []string{`TKT-\d+`}, []string{envSecret, "short"})
}

func TestPlanted(t *testing.T) {
	r := tableRedactor(t)
	for _, s := range planted {
		text, want, _ := plant(s)
		if got := r.String(text); got != want {
			t.Errorf("%q\n gives %q\n want  %q", text, got, want)
		}
		// The same inside JSON, plain and with every byte escaped.
		for _, raw := range []string{quote(text), escapeAll(text)} {
			got := r.JSON(`{"snapshot":` + raw + `,"n":1}` + "\n")
			if wantJSON := `{"snapshot":` + quote(want) + `,"n":1}` + "\n"; got != wantJSON {
				t.Errorf("%s\n gives %s\n want  %s", raw, got, wantJSON)
			}
		}
	}
	t.Logf("%d secrets", len(planted))
}

func escapeAll(s string) string {
	b := []byte{'"'}
	for _, r := range s {
		if r < 0x10000 {
			b = append(b, `\u`...)
			b = append(b, hex.EncodeToString([]byte{byte(r >> 8), byte(r)})...)
		}
	}
	return string(append(b, '"'))
}

var innocent = []string{
	``, `[redacted]`, `password: [redacted]`, `Cookie: [redacted]`, `https://[redacted]@example.com/`,
	`- textbox "Password" [ref=e2]`,
	`- textbox "Password:" [ref=e2]`,
	`- textbox "Password: " [ref=e2]` + "\n- button \"Sign in\" [ref=e3]",
	"- textbox \"Password\" [ref=e2]:\n- button \"Sign in\" [ref=e3]",
	`- textbox "Name" [ref=e1]: Alice Smith`,
	`- link "Forgot password?" [ref=e9]`,
	"- row \"Name Password\":\n  - columnheader \"Name\"\n  - columnheader \"Password\"\n- row \"Ann changed\":\n  - cell \"Ann\"\n  - cell \"changed\"\n",
	`https://example.com/a%20b%20c%20d?q=one%20two`, `VGhpcyBpcyBhbiBvcmRpbmFyeSB0ZXh0`,
	"- link \"Forgot password\":\n    - /url: /reset",
	`- heading "Your token:" [level=2, ref=e1]`,
	`- combobox "Color" [expanded=false, ref=e7]: Red`,
	`- checkbox "Remember this session" [checked=false, ref=e6]`,
	`click @e12, then @e13`,
	`https://example.com:8443/path/@handle?q=a:b#frag`,
	`https://example.com/reset-password?step=2`,
	`https://example.com/a?sort=key&key=title`,
	`ssh://git@github.com/org/repo.git`,
	`mailto:bob@example.com`,
	`git@github.com:org/repo.git`,
	`df2720e8a1b5c3d4e5f60718293a4b5c6d7e8f90`,
	`sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08`,
	`sha512-tL5ZfnAa+vZQfEUkEVyyZQFzF6+r9nE07UnjCFMhNFZA709dRc9KYIK1AOXwzBKNHrnxrCaAMgeNJin7NO7j5g==`,
	`123e4567-e89b-12d3-a456-426614174000`,
	`Donaudampfschifffahrtselektrizitätenhauptbetriebswerkbauunterbeamtengesellschaft`,
	`data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg==`,
	`eyJrZXkiOiJ2YWx1ZSJ9`,
	`input[type=password]`, `#password`, `[name="token"]`, `.sk-container-fluid-main-header-wide`, `div.task-list-item-checkbox-12345`,
	`sk-learn`, `risk-abcdefghijklmnopqrstuvwxyz1234`,
	`Password must be at least 8 characters`, `Password: must be at least 8 characters`, `The password is required.`, `token: string, password: string`,
	`max_tokens: 4096`, `tokenizer: bpe`, `secretary: Jane`, `author: Bob`, `token_type=bearer`, `expires_in=3600`, `Cookie policy: essential`,
	`Session: Keynote`, `keyboard: qwerty`, `monkey=banana`, `PWD=/home/agent`, `cookies: 12`,
	`Bearer of good news`, `bearer authentication`, `Basic authentication`, `basic information about cats`, `Basic Configuration`,
	"-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----",
	"-----BEGIN PUBLIC KEY-----\nMIIB\n-----END PUBLIC KEY-----",
	`std::string token::parse`, `a == b`, `12:34:56`, `key=value`, `x-api: y`, `AKIA is a prefix`, `ghp_ tokens`, `"password":null`, `password=true`,
	`{"refs":{"e1":{"name":"Password","role":"textbox"}},"n":12345678901234567890}`,
	`POLICY_BLOCKED (-32004) url.private: host 127.0.0.1 is a loopback address; open a public one`,
	`Element not found: #password`, `Unknown ref: e99`,
	`short`, `日本語のテキスト: パスワード`, "tab\there", `1.5e300`, `C:\Users\bob`, `/usr/lib/node_modules`, `v1.2.3-rc.1+build.5`,
}

func TestInnocent(t *testing.T) {
	r := tableRedactor(t)
	for _, s := range innocent {
		if got := r.String(s); got != s {
			t.Errorf("%q becomes %q", s, got)
		}
		doc := `{ "snapshot" : ` + quote(s) + `}`
		if got := r.JSON(doc); got != doc {
			t.Errorf("%s becomes %s", doc, got)
		}
	}
	t.Logf("%d texts", len(innocent))
}

// TestBase64: a secret inside a longer base64 text, at each offset.
func TestBase64(t *testing.T) {
	secret := "correct-Horse/7"
	r := newRedactor(t, nil, nil, []string{secret})
	for _, before := range []string{"", "a", "ab", "abc", "user:"} {
		for _, after := range []string{"", "x", "xy"} {
			for _, enc := range []*base64.Encoding{base64.StdEncoding, base64.URLEncoding} {
				text := enc.EncodeToString([]byte(before + secret + after))
				got := r.String(text)
				left, _ := enc.DecodeString(strings.Split(got, Marker)[0])
				if !strings.Contains(got, Marker) || len(got)-len(Marker) > (len(before)+len(after))*4/3+6 || strings.Contains(string(left), secret[:3]) {
					t.Errorf("%q between %q and %q leaves %q", text, before, after, got)
				}
			}
		}
	}
}

func TestJSONByKey(t *testing.T) {
	r := newRedactor(t, []string{"tresor"}, nil, nil)
	for in, want := range map[string]string{
		`{"password":"x","Api-Key":"y","n":1}`:                `{"password":"[redacted]","Api-Key":"[redacted]","n":1}`,
		`{"passw\u006frd":"x"}`:                               `{"password":"[redacted]"}`,
		`{"token":123456,"token2":true,"secret":null}`:        `{"token":"[redacted]","token2":true,"secret":null}`,
		`{"cookie":{"a":"b","c":["d",{"e":"f"}]}}`:            `{"cookie":{"a":"[redacted]","c":["[redacted]",{"e":"[redacted]"}]}}`,
		`{"session":"lunch","sid":"a1b2c3d4e5"}`:              `{"session":"lunch","sid":"[redacted]"}`,
		`[{"name":"access_token","value":"x"}]`:               `[{"name":"access_token","value":"[redacted]"}]`,
		`{"AKIA` + `IOSFODNN7EXAMPLE":1}`:                     `{"[redacted]":1}`,
		`{"Tresor":"x"}`:                                      `{"Tresor":"[redacted]"}`,
		`{"password":"","token":"[redacted]"}`:                `{"password":"","token":"[redacted]"}`,
		`{"a":"\ud800 password=x"}`:                           `{"a":"` + "\ufffd" + ` password=[redacted]"}`,
		`{"a":1,"a":"password=x"}`:                            `{"a":1,"a":"password=[redacted]"}`,
		`not json, password=x`:                                `not json, password=[redacted]`,
		`{"refs":{"e1":{"name":"Password","role":"t"}}}`:      `{"refs":{"e1":{"name":"Password","role":"t"}}}`,
		strings.Repeat("[", 5000) + strings.Repeat("]", 5000): strings.Repeat("[", 5000) + strings.Repeat("]", 5000), // as a text
	} {
		if got := r.JSON(in); got != want {
			t.Errorf("%.200s\n gives %.200s\n want  %.200s", in, got, want)
		}
	}
}

func TestArgv(t *testing.T) {
	r := newRedactor(t, nil, nil, []string{"environment-value"})
	for in, want := range map[string]string{
		"fill|#password|hunter2":             "fill|#password|[redacted]",
		"fill|input[type=password]|hunter2":  "fill|input[type=password]|[redacted]",
		"type|#userPin|1234":                 "type|#userPin|[redacted]",
		"select|#token|a|b":                  "select|#token|[redacted]|[redacted]",
		"fill|@e5|hello":                     "fill|@e5|hello",
		"fill|#name|environment-value":       "fill|#name|[redacted]",
		"fill|#passenger|Bob":                "fill|#passenger|Bob",
		"open|--token=abc|x":                 "open|--token=[redacted]|x",
		"open|--token|abc|x":                 "open|--token|[redacted]|x",
		"open|https://bob:pw@example.com/":   "open|https://[redacted]@example.com/",
		"open|https://example.com/?token=ab": "open|https://example.com/?token=[redacted]",
		"wait|--text|password":               "wait|--text|password",
		"":                                   "",
	} {
		if got := strings.Join(r.Argv(strings.Split(in, "|")), "|"); got != want {
			t.Errorf("%s gives %s, want %s", in, got, want)
		}
	}
	if got := r.Argv(nil); len(got) != 0 {
		t.Errorf("got %q", got)
	}
}

// TestRefsSurvive: whatever is hidden, every ref of a snapshot stays.
func TestRefsSurvive(t *testing.T) {
	r := newRedactor(t, nil, []string{`(?s)S{3}.*E{3}`}, nil)
	for _, s := range []string{
		"- textbox \"password=abc [ref=e1]\n- text: token: x [ref=e2]\"",
		"- text: Cookie: a=b [ref=e1] c=d [level=2, ref=e2]\n- x [ref=e3]",
		"- StaticText \"-----BEGIN PRIVATE KEY-----\"\n- StaticText \"" + b64ish + "\" [ref=e1]\n- StaticText \"" + b64ish + "\" [ref=e2]\n- x \"-----END PRIVATE KEY-----\" [ref=e3]",
		"- textbox \"Password\" [ref=e1]: x [ref=e2]\n  - text: y [ref=e3]",
		`- link "password:" [ref=e1]: token="[ref=e2]"`,
	} {
		got := r.String(s)
		for _, ref := range []string{"[ref=e1]", "ref=e2]", "[ref=e3]"} {
			if strings.Contains(s, ref) && !strings.Contains(got, ref) {
				t.Errorf("%s is gone:\n%s", ref, got)
			}
		}
		if strings.Contains(got, b64ish) {
			t.Errorf("the key is there:\n%s", got)
		}
	}
}

func TestSecrets(t *testing.T) {
	got := Secrets([]string{
		"PATH=/usr/bin:/bin", "HOME=/root", "LANG=en_US.UTF-8", "EMPTY=", "SHORT_TOKEN=abc",
		"DB_PASSWORD=sunshine-1", "API_TOKEN_FILE=/run/x", "TOKEN_URL=https://example.com/token",
		"RANDOM=Xk29vQmPz71LwTrs84Hd", "GIT_COMMIT=df2720e8a1b5c3d4e5f60718293a4b5c6d7e8f90",
		"DATABASE_URL=postgres://bob:long-enough@db/x", "GREETING=hello wonderful world", "NAME=agentbrowser",
	})
	want := "sunshine-1|Xk29vQmPz71LwTrs84Hd|long-enough"
	if strings.Join(got, "|") != want {
		t.Errorf("got %q", got)
	}
}

func TestNewRedactorRefuses(t *testing.T) {
	if _, err := NewRedactor([]string{"--"}, nil, nil); err == nil {
		t.Error("a key without letters was taken")
	}
	if _, err := NewRedactor(nil, []string{"("}, nil); err == nil {
		t.Error("a bad pattern was taken")
	}
}

// TestLinear: a lot of what a page could write to make it slow.
func TestLinear(t *testing.T) {
	r := tableRedactor(t)
	const size = 256 << 10
	for _, unit := range []string{
		"a", " ", "\n", "=", ":", "]: ", "token=", "token= ", "session=", "eyJ", "eyJ.", "eyJa.eyJb.", "sk-", "ghp_", "-----BEGIN PRIVATE KEY-----", "-----END",
		"://", "://a:", "://a@", "Bearer ", "bearer a", "basic a", "basic dXNlcjpwYXNz", "- textbox \"Password\"", "- textbox \"Password\" [ref=e1]:\n", " - textbox \"Password\":\n",
		"[ref=e1]", "[ref=e", "token=[ref=e1]", "token=\"", "\"token\":\"", "cookie: ", "cookie: \"", "--token ", "password is ", "<token>", "\\", "\\\"", "%3D", "key key ", envSecret[:5], "xoxb-", "SG.", "[redacted]", "token=[redacted]", "ref=e1 token=", "password: a ref=e1 [",
	} {
		s := strings.Repeat(unit, size/len(unit))
		t.Run(unit, func(t *testing.T) {
			if took := need.CPU(t, func() { r.String(s) }); took > 500*time.Millisecond {
				t.Errorf("it takes %s", took)
			}
		})
		if testing.Short() {
			break
		}
	}
}

func FuzzRedact(f *testing.F) {
	for _, s := range planted {
		text, _, _ := plant(s)
		f.Add(text)
	}
	for _, s := range innocent {
		f.Add(s)
	}
	f.Add("-----BEGIN" + "PRIVATE KEY-----!AaKEY    ") // beside a marker, AaKEY is a weak name and the text a random value
	r := newRedactor(f, []string{"tresor"}, []string{`TKT-\d+`}, []string{envSecret})
	f.Fuzz(func(t *testing.T, s string) {
		got := r.String(s)
		if again := r.String(got); again != got {
			t.Errorf("not stable: %q, then %q", got, again)
		}
		if strings.Contains(got, envSecret) {
			t.Errorf("the secret is in %q", got)
		}
		for _, secret := range []string{"ghp" + "_abcdefghijklmnopqrstuvwxyz0123456789", "AKIA" + "IOSFODNN7EXAMPLE"} {
			if got := r.String(s + " " + secret); strings.Contains(got, secret) {
				t.Errorf("the secret is in %q", got)
			}
		}
		doc := `{"a":` + quote(s) + `,` + quote(s) + `:["` + jsonSafe(s) + `"]}`
		if out := r.JSON(doc); !json.Valid([]byte(out)) {
			t.Errorf("%s became %s", doc, out)
		} else if again := r.JSON(out); again != out {
			t.Errorf("not stable: %s, then %s", out, again)
		}
		if json.Valid([]byte(s)) && !json.Valid([]byte(r.JSON(s))) {
			t.Errorf("%s became %s", s, r.JSON(s))
		}
		r.Argv(strings.Fields(s))
	})
}

func jsonSafe(s string) string { q := escapeAll(s); return q[1 : len(q)-1] }

var plainPage = func() string {
	var b strings.Builder
	for i := 0; b.Len() < 30000; i++ {
		b.WriteString("- heading \"The history of the monkey puzzle tree\" [level=2, ref=e" + string(rune('0'+i%10)) + "]\n  - paragraph: The tree was first described in 1782, and it is grown as an ornamental: see https://example.com/wiki/tree?page=2 for more.\n")
	}
	return b.String()
}()

func BenchmarkString30KB(b *testing.B) {
	r := newRedactor(b, nil, nil, []string{envSecret, "another-secret-value", "Xk29vQmPz71LwTrs84Hd"})
	b.SetBytes(int64(len(plainPage)))
	for b.Loop() {
		r.String(plainPage)
	}
}

func BenchmarkJSON30KB(b *testing.B) {
	r := newRedactor(b, nil, nil, []string{envSecret, "another-secret-value", "Xk29vQmPz71LwTrs84Hd"})
	doc := `{"origin":"https://example.com/","snapshot":` + quote(plainPage) + "}\n"
	b.SetBytes(int64(len(doc)))
	for b.Loop() {
		r.JSON(doc)
	}
}
