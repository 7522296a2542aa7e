package verify

import (
	"bytes"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/image/tree"
	"github.com/slimctl/slimctl/internal/lazyregexp"
)

var secretRules = []rule{
	{Rule: Rule{
		ID: "secret-env", Title: "No variable of the image holds a secret", Severity: Error,
		Why: "Everybody who pulls an image reads its config. A key that is set there is the key of every container that does not set another.",
		Fix: "Take the variable away, and change the secret: it is known.",
	}, each: secretEnv},
	{Rule: Rule{
		ID: "secret-history", Title: "The history holds no secret", Severity: Error,
		Why: "Build arguments and commands stay in the image's history, and everybody who pulls it reads them.",
		Fix: "Build with secret mounts, and change the secret: it is known.",
	}, each: secretHistory},
	{Rule: Rule{
		ID: "secret-file", Title: "No file holds a secret", Severity: Error,
		Why: "Keys, tokens and shell histories are for everybody who pulls the image, also where an upper layer hides them.",
		Fix: "Remove it from the layer that brings it, and change the secret: it is known.",
	}, each: func(h *held) { secretFiles(h, false) }},
	{Rule: Rule{
		ID: "secret-base", Title: "The base holds no secret", Severity: Warning,
		Why: "A key that the base brings is known to everybody who pulls the base: whatever trusts it, trusts everybody.",
		Fix: "Remove the file by the profile.",
	}, each: func(h *held) { secretFiles(h, true) }},
}

// secretName matches names of variables with a secret, in whole words.
var secretName = lazyregexp.New(`(?i)(^|[_.-])(KEY|APIKEY|TOKEN|SECRET|SECRETS|PASSWORD|PASSWD|PASSPHRASE|PASS|PWD|CREDENTIALS?|AUTH|PRIVATE)$|(?i)(SECRET|PASSWORD|PASSWD|PRIVATE_?KEY|ACCESS_?KEY|API_?KEY|TOKEN)`)

// notSecret matches names that look like these but aren't.
var notSecret = lazyregexp.New(`(?i)^(PWD|OLDPWD|SSH_AUTH_SOCK|.*_(FILE|PATH|DIR|URL|TTL|TTL_SECONDS|TIMEOUT|SIZE|LIMIT|MAX|COUNT|ENABLED|TYPE|ID|LENGTH)|JWT_PUBLIC_KEY|.*PUBLIC_KEY|DISABLE_.*|ENABLE_.*|TOKENIZERS_.*|MAX_.*)$`)

// shapes matches secrets with a recognizable form: keys in PEM, tokens with a service's own prefix (GitHub, GitLab,
// npm, PyPI, Slack, AWS, Google, OpenAI, Anthropic, Docker, Stripe), and JWTs.
var shapes = lazyregexp.New(`-----BEGIN (?:[A-Z]+ )*PRIVATE KEY-----|\b(?:gh[pousr]_[A-Za-z0-9]{36}|github_pat_[A-Za-z0-9_]{60,}|glpat-[A-Za-z0-9_-]{20}|npm_[A-Za-z0-9]{36}|pypi-[A-Za-z0-9_-]{50,}|xox[abprs]-[A-Za-z0-9-]{10,}|(?:AKIA|ASIA)[A-Z0-9]{16}|AIza[A-Za-z0-9_-]{35}|sk-(?:ant-|proj-)?[A-Za-z0-9_-]{32,}|dckr_pat_[A-Za-z0-9_-]{20,}|[rs]k_live_[A-Za-z0-9]{20,}|eyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,})`)

func secretEnv(h *held) {
	for _, name := range sortedKeys(h.Surface.Config.Env) {
		if secretVariable(name, h.Surface.Config.Env[name]) {
			h.reportFinding(name, nil, "the image sets %s (its value is not shown)", name)
		}
	}
	for _, name := range sortedKeys(h.Surface.Config.Labels) {
		if shapes.MatchString(h.Surface.Config.Labels[name]) {
			h.reportFinding(name, nil, "the label %s holds what looks like a secret (it is not shown)", name)
		}
	}
}

// secretVariable reports whether a variable probably contains a secret, by its name or its value.
func secretVariable(name, value string) bool {
	named := secretName.MatchString(name) && !notSecret.MatchString(name) && !slices.Contains([]string{"true", "false", "0", "1", "none"}, strings.ToLower(value))
	return value != "" && (named || shapes.MatchString(value) || credentials.MatchString(value))
}

// credentials matches a URL with a password.
var credentials = lazyregexp.New(`[a-z][a-z0-9+.-]*://[^/\s:@]+:[^/\s:@$%{]+@`)

// assignment matches NAME=value in ENV, ARG, export and BuildKit's own "|2 NAME=value", or the older "ENV NAME value".
var assignment = lazyregexp.New(`(?:^|[\s;|&"'])(?:(?:ENV|ARG)\s+([A-Za-z_][A-Za-z0-9_]*)\s+|([A-Za-z_][A-Za-z0-9_]*)=)("[^"]*"|'[^']*'|[^\s;|&"']+)`)

func secretHistory(h *held) {
	if h.Files.Config == nil {
		return
	}
	for i, line := range h.Files.Config.History {
		for _, text := range []string{line.CreatedBy, line.Comment, line.Author} {
			if what := secretIn(text); what != "" {
				h.reportFinding(fmt.Sprintf("history %d", i+1), nil, "line %d of the history sets %s (it is not shown)", i+1, what)
			}
		}
	}
}

// secretIn returns the name that a text sets to a probable secret; "" if there is none.
func secretIn(text string) (what string) {
	for _, m := range assignment.FindAllStringSubmatch(text, -1) {
		name, value := m[1]+m[2], strings.Trim(m[3], `"'`)
		if secretName.MatchString(name) && !notSecret.MatchString(name) && value != "" && !strings.HasPrefix(value, "$") {
			what = name
		}
	}
	if what == "" && (shapes.MatchString(text) || credentials.MatchString(text)) {
		what = "something that looks like a secret"
	}
	return what
}

// secretPaths matches files that are secrets by their names.
var secretPaths = lazyregexp.New(`(?i)(^|/)(\.ssh/(id_[a-z0-9_]+|identity|authorized_keys2?|.*\.pem)|id_(rsa|dsa|ecdsa|ed25519)(_sk)?|ssh_host_[a-z0-9]+_key|\.git-credentials|\.aws/(credentials|config)|\.config/gcloud/.*(credentials|access_tokens|adc).*|application_default_credentials\.json|\.azure/(accesstokens|msal_token_cache|azureprofile)\.(json|bin)|\.kube/config|kubeconfig|\.(bash|zsh|sh|ash|python|node_repl|psql|mysql|sqlite|rediscli|irb|php|lua)_history|\.local/share/fish/fish_history|\.lesshst|\.viminfo|\.vault-token|\.terraform\.d/credentials\.tfrc\.json|\.gnupg/(private-keys-v1\.d/.*|secring\.gpg)|\.pgpass|\.my\.cnf|htpasswd|\.htpasswd|\.p12|.*\.(pfx|p12|jks|keystore|kdbx)|shadow-|krb5\.keytab)$`)

// readPaths matches files that may contain a secret.
var readPaths = lazyregexp.New(`(?i)(^|/)(\.npmrc|npmrc|\.netrc|_netrc|\.yarnrc(\.yml)?|\.pypirc|pip\.conf|\.docker/config\.json|\.dockercfg|containers/auth\.json|\.config/gh/hosts\.yml|\.env(\..*)?|.*\.(key|pem)|credentials(\.json)?|service[_-]account.*\.json|secrets?\.(json|ya?ml|toml)|\.gitconfig|auth\.conf|.*\.sources|sources\.list)$`)

// said matches a secret in such a file: a token or password with a value.
var said = lazyregexp.New(`(?im)(_authToken|_password|_auth)\s*=\s*[^\s$]|^\s*machine\s.*\spassword\s+\S|\bpassword\s+[^\s#]+$|"auth"\s*:\s*"[A-Za-z0-9+/=]+"|"(identitytoken|registrytoken)"\s*:\s*"[^"]+"|oauth_token:\s*\S|"private_key"\s*:\s*"|^\s*(export\s+)?[A-Z0-9_]*(SECRET|PASSWORD|TOKEN|API_?KEY|ACCESS_KEY)[A-Z0-9_]*\s*=\s*["']?[^\s"'$]`)

// pages matches directories where packages have certificates, keys and settings of their own tests and examples.
var pages = lazyregexp.New(`(^|/)(tests?|testing|testdata|examples?|docs?|share/doc|site-packages|dist-packages|node_modules)/|^/(etc/ssl/certs|usr/share/ca-certificates|usr/lib/ssl)/`)

// words lists texts, one of which is in every path that the path expressions match; these take a hundred times longer.
var words = []string{
	"key", "pem", "cred", "id_", "identity", "authorized", "gcloud", "azure", "accesstokens", "msal", "kubeconfig", ".kube", "history", ".lesshst",
	".viminfo", "token", "gnupg", ".pgpass", ".my.cnf", "htpasswd", ".p12", ".pfx", ".jks", "keystore", ".kdbx", "shadow-", "keytab", "npmrc", "netrc",
	".yarnrc", ".pypirc", "pip.conf", "config.json", ".dockercfg", "auth.", "hosts.yml", ".env", "service", "secret", ".gitconfig", "sources", ".terraform",
}

const (
	mostSecretFiles = 500
	mostSecretSize  = 1 << 20
)

// secretFiles checks the layers above the base, as far as the base is known.
func secretFiles(h *held, base bool) {
	var read []string
	first, sure := h.above()
	for i := range h.Files.Layers {
		if base != (sure && i < first) {
			continue
		}
		for _, e := range h.Files.Layers[i].Entries {
			if e.Type != image.TypeFile || e.Size == 0 {
				continue
			}
			lower := strings.ToLower(e.Path)
			named := slices.ContainsFunc(words, func(w string) bool { return strings.Contains(lower, w) }) && !pages.MatchString(e.Path)
			if h.isLaid(e.Path) || !named && i < first {
				continue
			}
			now, there := h.Files.Lookup(e.Path)
			visible := there && now.Layer == i
			at := []tree.Place{{Path: e.Path, Layer: h.Files.Layers[i].Digest.String()}}
			hidden := ""
			if !visible {
				hidden = ", hidden by a layer above it"
			}
			switch {
			case i < first && !visible: // from the base, and removed by the profile
			case named && secretPaths.MatchString(e.Path):
				h.reportFinding(e.Path, at, "%s is in the image%s", e.Path, hidden)
			case visible && e.Size <= mostSecretSize && (i >= first || readPaths.MatchString(e.Path)):
				read = append(read, e.Path)
			case !visible && named && readPaths.MatchString(e.Path):
				h.reportFinding(e.Path, at, "%s is in the image%s, and what it says was not read", e.Path, hidden)
			}
		}
	}
	slices.Sort(read)
	read = slices.Compact(read)
	if len(read) > mostSecretFiles {
		h.addUnchecked("secrets in %d of %d files that could hold some", len(read)-mostSecretFiles, len(read))
		read = read[:mostSecretFiles]
	}
	contents := h.readFiles(read)
	for _, p := range read {
		data := contents[p]
		if bytes.HasPrefix(data, []byte("\x7fELF")) {
			continue
		}
		if shapes.Match(data) || readPaths.MatchString(p) && path.Ext(p) != ".pem" && (said.Match(data) || credentials.Match(data)) {
			h.reportFinding(p, h.at(p), "%s holds what looks like a secret (it is not shown)", p)
		}
	}
}
